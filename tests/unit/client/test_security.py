"""SASL against the examples of its RFCs, and TLS against a certificate of our own."""

import base64
import secrets
import shutil
import ssl
import subprocess

import pytest

from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected, Refused
from headrace.client.security import Security, authenticate, parse_security
from headrace.model.errors import ConfigError, ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from tests.fakes.peers import api_versions, peer


class Dialogue:
    """The broker's side: the tokens it expects, each with its answer."""

    def __init__(self, *steps):
        self.left = list(steps)

    def __call__(self, token):
        expected_token, answer = self.left.pop(0)
        assert token == expected_token
        return answer


def test_plain_is_a_name_and_a_password():
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="a", password="b")
    dialogue = Dialogue((b"\0a\0b", b""))
    authenticate(security, dialogue)
    assert dialogue.left == []


# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH_NONCES = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
STEPS = [
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
    dialogue = Dialogue(*STEPS)
    authenticate(SCRAM, dialogue)
    assert dialogue.left == []


def test_a_broker_that_does_not_know_the_password_is_refused(known_nonce):
    (first, answer), (second, _) = STEPS
    lie = b"v=" + base64.b64encode(bytes(32))

    with pytest.raises(Disconnected, match="did not prove"):
        authenticate(SCRAM, Dialogue((first, answer), (second, lie)))


def test_a_nonce_that_does_not_begin_with_ours_is_refused(known_nonce):
    answer = b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"

    with pytest.raises(Disconnected, match="invalid SCRAM response"):
        authenticate(SCRAM, Dialogue((STEPS[0][0], answer)))


@pytest.mark.parametrize("answer", [b"r=%s1,s=W22Z,i=many", b"r=%s1,s=W22ZaJ0,i=4096", b"\xff%s"])
def test_a_scram_answer_that_cannot_be_read_is_refused(known_nonce, answer):
    answer = answer.replace(b"%s", NONCE.encode())
    with pytest.raises(Disconnected, match="invalid SCRAM response"):
        authenticate(SCRAM, Dialogue((STEPS[0][0], answer)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
            "subjectAltName=DNS:localhost", "-keyout", str(directory / "key.pem"),
            "-out", str(directory / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return directory


@pytest.fixture
def tls_listener(certificate):
    """Answers ApiVersions after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with peer(
        api_versions(), wrap=lambda plain: context.wrap_socket(plain, server_side=True)
    ) as port:
        yield port


def tls(certificate, **more):
    return parse_security(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificate / "cert.pem"),
            **more,
        }
    )


def connect(host, port, security):
    return Connection(host, port, client_id="test", security=security)


def test_a_connection_with_tls_checks_the_certificate_and_the_name(tls_listener, certificate):
    with connect("localhost", tls_listener, tls(certificate)) as connection:
        assert connection.version_of(m.MetadataRequest) == 13
        assert connection.socket.cipher()


def test_another_name_is_accepted_if_the_check_is_off(tls_listener, certificate):
    off = tls(certificate, **{"ssl.endpoint.identification.algorithm": ""})
    with connect("127.0.0.1", tls_listener, off) as connection:
        assert connection.version_of(m.MetadataRequest) == 13


def test_another_name_is_refused(tls_listener, certificate):
    with pytest.raises(Disconnected, match="cannot connect to .*certificate verify failed"):
        connect("127.0.0.1", tls_listener, tls(certificate))


def test_a_certificate_that_is_not_trusted_is_refused(tls_listener):
    with pytest.raises(Disconnected, match="cannot connect to .*certificate verify failed"):
        connect("localhost", tls_listener, Security(protocol="SSL"))


PLAIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="ann", password="secret")
SERVED = m.ApiVersionsResponse(
    api_keys=[
        m.ApiVersionsResponse.ApiVersion(api_key=key, max_version=1)
        for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA)
    ]
)


def response(api_key, api_version, correlation_id, message):
    return bytes(encode_response(api_key, api_version, correlation_id, message))


def sasl_answers(handshake_code=0, authenticate_code=0):
    shaken = m.SaslHandshakeResponse(error_code=handshake_code, mechanisms=["SCRAM-SHA-512"])
    done = m.SaslAuthenticateResponse(error_code=authenticate_code, error_message="go away")
    return [
        response(ApiKey.API_VERSIONS, 0, 1, SERVED),
        response(ApiKey.SASL_HANDSHAKE, 1, 2, shaken),
        response(ApiKey.SASL_AUTHENTICATE, 1, 3, done),
    ]


def test_a_user_with_the_right_password_is_connected():
    with peer(*sasl_answers()) as port, connect("127.0.0.1", port, PLAIN) as connection:
        assert connection.version_of(m.MetadataRequest) == 1


def test_a_mechanism_that_the_broker_does_not_offer_is_refused():
    answers = sasl_answers(handshake_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)[:2]
    with (
        peer(*answers) as port,
        pytest.raises(Refused, match="supports SCRAM-SHA-512, not PLAIN"),
    ):
        connect("127.0.0.1", port, PLAIN)


def test_a_user_with_a_wrong_password_is_refused():
    answers = sasl_answers(authenticate_code=ErrorCode.SASL_AUTHENTICATION_FAILED)
    with (
        peer(*answers) as port,
        pytest.raises(Refused, match=r"rejected user 'ann' \(go away\)") as refused,
    ):
        connect("127.0.0.1", port, PLAIN)
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"security.protocol": "TLS"}, "x.security.protocol is 'TLS'; it must be one of PLAIN"),
        ({"security.protocol": "SASL_SSL"}, "x.sasl.mechanism is 'GSSAPI'"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "x.sasl.jaas.config must"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k"}, "x.ssl.keystore.type=PEM"),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.location": "/no/such/file",
                "ssl.truststore.type": "PEM",
            },
            "x.ssl.truststore.location: .*No such file",
        ),
    ],
)
def test_a_setting_that_cannot_be_honored_is_named_with_its_prefix(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_security(settings, prefix="x.")


def test_user_and_password_are_read_from_the_jaas_configuration():
    found = parse_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": r"""a.B required username="an\"n" password='se cret';""",
        }
    )
    assert (found.username, found.password) == ('an"n', "se cret")
