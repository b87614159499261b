"""TLS and SASL as the Java client's settings ask for them, on a plain blocking socket.

Stores are PEM (`ssl.truststore.type=PEM` and its twin), because Python reads no JKS; what cannot
be done is refused by the name of the setting. SASL is PLAIN or SCRAM.
"""

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.spark.failures import BadOption, Disconnected

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS = ("PLAIN", *_SCRAM_HASHES)
_SCRAM_ITERATIONS_MIN = 4096

Exchange = Callable[[bytes], bytes]


class Security(NamedTuple):
    """How to reach a broker; made of text alone, so that it travels to executors."""

    protocol: str = PLAINTEXT
    mechanism: str = ""
    username: str = ""
    password: str = ""
    trusted: str = ""  # PEM text; empty means the system's authorities
    certificate_chain: str = ""  # PEM text, with the key in front or apart
    private_key: str = ""
    key_password: str = ""
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)


def parse_security(settings: Mapping[str, str]) -> Security:
    """From the Java client's names without their ``kafka.`` in front."""
    protocol = settings.get("security.protocol", PLAINTEXT).upper()
    if protocol not in _PROTOCOLS:
        raise BadOption(
            f"kafka.security.protocol is {protocol!r}; it may be {', '.join(_PROTOCOLS)}"
        )
    found = Security(protocol=protocol)
    if found.uses_sasl:
        found = _with_sasl(found, settings)
    if found.uses_tls:
        found = _with_tls(found, settings)
    return found


def _with_sasl(security: Security, settings: Mapping[str, str]) -> Security:
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise BadOption(
            f"kafka.sasl.mechanism is {mechanism!r}; Headrace's client speaks "
            f"{', '.join(_MECHANISMS)}. Give the query one of these on a listener of its own"
        )
    username = settings.get("sasl.username", "")
    password = settings.get("sasl.password", "")
    jaas = settings.get("sasl.jaas.config")
    if jaas:
        username = _jaas_value(jaas, "username") or username
        password = _jaas_value(jaas, "password") or password
    if not username:
        raise BadOption(
            'kafka.sasl.jaas.config must name a user: \'… required username="…" password="…";\''
        )
    return security._replace(mechanism=mechanism, username=username, password=password)


def _jaas_value(jaas: str, name: str) -> str:
    found = re.search(rf"""\b{name}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""", jaas)
    if found is None:
        return ""
    quoted, single, bare = found.groups()
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted)
    return single if single is not None else bare


def _with_tls(security: Security, settings: Mapping[str, str]) -> Security:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "").upper()
        if settings.get(f"ssl.{store}.location") and kind != "PEM":
            raise BadOption(
                f"kafka.ssl.{store}.location is a {kind or 'JKS'} store, which only Java reads; "
                f"export it as PEM (keytool -exportcert -rfc, openssl pkcs12 -in) and add "
                f"kafka.ssl.{store}.type=PEM"
            )
    return security._replace(
        trusted=settings.get("ssl.truststore.certificates") or _file(settings, "truststore"),
        certificate_chain=settings.get("ssl.keystore.certificate.chain")
        or _file(settings, "keystore"),
        private_key=settings.get("ssl.keystore.key", ""),
        key_password=settings.get("ssl.key.password", ""),
        check_hostname=settings.get("ssl.endpoint.identification.algorithm", "https") != "",
    )


def _file(settings: Mapping[str, str], store: str) -> str:
    location = settings.get(f"ssl.{store}.location")
    if not location:
        return ""
    try:
        return Path(location).read_text()
    except OSError as unreadable:
        raise BadOption(f"kafka.ssl.{store}.location: {unreadable}") from unreadable


def tls_wrapped(plain: socket.socket, host: str, security: Security) -> socket.socket:
    """The same connection under TLS, the handshake done."""
    context = ssl.create_default_context(cadata=security.trusted or None)
    context.check_hostname = security.check_hostname
    if security.certificate_chain:
        # Python loads a client's key from files only; this one is gone before the handshake.
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder) / "client.pem"
            pem.touch(mode=0o600)
            pem.write_text(f"{security.private_key}\n{security.certificate_chain}")
            context.load_cert_chain(pem, password=security.key_password or None)
    return context.wrap_socket(plain, server_hostname=host)


def authenticate(security: Security, exchange: Exchange) -> None:
    """Runs the mechanism; ``exchange`` sends one token and gives back the broker's."""
    if security.mechanism == "PLAIN":
        exchange(f"\0{security.username}\0{security.password}".encode())
    else:
        _scram(security, exchange)


def _scram(security: Security, exchange: Exchange) -> None:
    """RFC 5802 without channel binding, as Kafka does it."""
    digest = _SCRAM_HASHES[security.mechanism]
    name = security.username.replace("=", "=3D").replace(",", "=2C")
    nonce = base64.b64encode(secrets.token_bytes(24)).decode()
    first_bare = f"n={name},r={nonce}"
    server_first = exchange(f"n,,{first_bare}".encode()).decode()
    said = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
    server_nonce, iterations = said.get("r", ""), int(said.get("i", "0"))
    if not server_nonce.startswith(nonce) or iterations < _SCRAM_ITERATIONS_MIN:
        raise Disconnected("the broker's SCRAM answer does not fit our question")
    salted = hashlib.pbkdf2_hmac(
        digest, security.password.encode(), base64.b64decode(said.get("s", "")), iterations
    )
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    final_bare = f"c=biws,r={server_nonce}"
    message = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.digest(stored_key, message, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = exchange(f"{final_bare},p={base64.b64encode(proof).decode()}".encode())
    server_key = hmac.digest(salted, b"Server Key", digest)
    expected = base64.b64encode(hmac.digest(server_key, message, digest)).decode()
    if not hmac.compare_digest(server_final.decode().partition("v=")[2].split(",")[0], expected):
        # Whoever answered does not know the password either.
        raise Disconnected("the broker could not prove that it knows the SCRAM password")
