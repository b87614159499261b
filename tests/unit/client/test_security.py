"""SASL against the examples of its RFCs, and TLS against a certificate of our own."""

import base64
import secrets
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected
from headrace.client.security import Security, authenticate, parse_security
from headrace.wire import framing, schema
from headrace.wire import messages as m
from headrace.wire.api import ApiKey


def exchange_of(expected):
    """The broker's side of a dialogue: what it must be told, and what it answers."""
    steps = iter(expected)

    def exchange(token):
        told, answer = next(steps)
        assert token == told
        return answer

    return exchange


def test_plain_is_a_name_and_a_password():
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="a", password="b")

    authenticate(security, exchange_of([(b"\0a\0b", b"")]))


# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH_NONCES = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
DIALOGUE = [
    (
        f"n,,n=user,r={NONCE}".encode(),
        f"r={BOTH_NONCES},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
    ),
    (
        f"c=biws,r={BOTH_NONCES},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode(),
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]
SCRAM = Security(
    protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="user", password="pencil"
)


@pytest.fixture
def known_nonce(monkeypatch):
    monkeypatch.setattr(secrets, "token_bytes", lambda size: base64.b64decode(NONCE))


def test_scram_speaks_as_the_rfc_shows(known_nonce):
    authenticate(SCRAM, exchange_of(DIALOGUE))


def test_a_broker_that_does_not_know_the_password_is_found_out(known_nonce):
    (first, answer), (second, _) = DIALOGUE
    lie = b"v=" + base64.b64encode(bytes(32))

    with pytest.raises(Disconnected, match="did not prove"):
        authenticate(SCRAM, exchange_of([(first, answer), (second, lie)]))


def test_a_nonce_that_does_not_begin_with_ours_is_refused(known_nonce):
    answer = b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"

    with pytest.raises(Disconnected, match="invalid SCRAM response"):
        authenticate(SCRAM, exchange_of([(DIALOGUE[0][0], answer)]))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
            "subjectAltName=DNS:localhost", "-keyout", str(folder / "key.pem"),
            "-out", str(folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def tls_listener(certificate):
    """Answers ApiVersions to whoever gets through the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)

    def serve():
        plain, _ = server.accept()
        plain.settimeout(30)
        try:
            with context.wrap_socket(plain, server_side=True) as secured:
                secured.recv(1000)
                answer = m.ApiVersionsResponse(
                    api_keys=[
                        m.ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=13)
                    ]
                )
                secured.sendall(framing.encode_response(ApiKey.API_VERSIONS, 0, 1, answer))
        except OSError:
            plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    thread.join(30)
    server.close()


def tls(certificate, **more):
    return parse_security(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificate / "cert.pem"),
            **more,
        }
    )


def test_a_connection_under_tls_checks_the_certificate_and_the_name(tls_listener, certificate):
    connection = Connection("localhost", tls_listener, tls(certificate), "test", 30)

    assert connection.version_of(m.MetadataRequest) == min(
        13, schema.definition("MetadataRequest").versions.last
    )
    connection.close()


def test_another_name_is_refused_unless_the_check_is_off(tls_listener, certificate):
    off = tls(certificate, **{"ssl.endpoint.identification.algorithm": ""})
    connection = Connection("127.0.0.1", tls_listener, off, "test", 30)
    connection.close()


def test_a_wrong_name_is_refused(tls_listener, certificate):
    with pytest.raises(Disconnected, match="cannot be reached"):
        Connection("127.0.0.1", tls_listener, tls(certificate), "test", 30)
