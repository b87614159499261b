"""TLS and SASL from the settings of Kafka's Java client, for a blocking socket.

Stores must be PEM (``ssl.truststore.type=PEM``, ``ssl.keystore.type=PEM``), because Python does not
read JKS. SASL is PLAIN or SCRAM. A setting that this client cannot honor raises ConfigError, which
names it.
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

from headrace.client.errors import Disconnected
from headrace.model.errors import ConfigError

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS = ("PLAIN", *_SCRAM_HASHES)
_SCRAM_ITERATIONS_MIN = 4096

Exchange = Callable[[bytes], bytes]


class Security(NamedTuple):
    """How to authenticate; plain text only, so that Spark can pickle it for its executors."""

    protocol: str = PLAINTEXT
    mechanism: str = ""
    username: str = ""
    password: str = ""
    trusted: str = ""  # PEM text; empty: the system's certificate authorities
    certificate_chain: str = ""  # PEM text; the key is in front or in ``private_key``
    private_key: str = ""
    key_password: str = ""
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)


def parse_security(settings: Mapping[str, str], prefix: str = "") -> Security:
    """Read the settings by their names in the Java client; errors put ``prefix`` in front."""
    protocol = settings.get("security.protocol", PLAINTEXT).upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{prefix}security.protocol is {protocol!r}; it must be one of {', '.join(_PROTOCOLS)}"
        )
    found = Security(protocol=protocol)
    if found.uses_sasl:
        found = _with_sasl(found, settings, prefix)
    if found.uses_tls:
        found = _with_tls(found, settings, prefix)
    return found


def _with_sasl(security: Security, settings: Mapping[str, str], prefix: str) -> Security:
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise ConfigError(
            f"{prefix}sasl.mechanism is {mechanism!r}; Headrace's client speaks "
            f"{', '.join(_MECHANISMS)}. Use a listener that offers one of these"
        )
    username = settings.get("sasl.username", "")
    password = settings.get("sasl.password", "")
    jaas = settings.get("sasl.jaas.config")
    if jaas:
        username = _jaas_value(jaas, "username") or username
        password = _jaas_value(jaas, "password") or password
    if not username:
        raise ConfigError(
            f'{prefix}sasl.jaas.config must name a user: \'… required username="…" password="…";\''
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


def _with_tls(security: Security, settings: Mapping[str, str], prefix: str) -> Security:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "").upper()
        if settings.get(f"ssl.{store}.location") and kind != "PEM":
            raise ConfigError(
                f"{prefix}ssl.{store}.location is a {kind or 'JKS'} store, which only Java reads; "
                f"export it as PEM (keytool -exportcert -rfc, openssl pkcs12 -in) and add "
                f"{prefix}ssl.{store}.type=PEM"
            )
    return security._replace(
        trusted=settings.get("ssl.truststore.certificates")
        or _file(settings, "truststore", prefix),
        certificate_chain=settings.get("ssl.keystore.certificate.chain")
        or _file(settings, "keystore", prefix),
        private_key=settings.get("ssl.keystore.key", ""),
        key_password=settings.get("ssl.key.password", ""),
        check_hostname=settings.get("ssl.endpoint.identification.algorithm", "https") != "",
    )


def _file(settings: Mapping[str, str], store: str, prefix: str) -> str:
    location = settings.get(f"ssl.{store}.location")
    if not location:
        return ""
    try:
        return Path(location).read_text()
    except OSError as unreadable:
        raise ConfigError(f"{prefix}ssl.{store}.location: {unreadable}") from unreadable


def wrap_in_tls(plain: socket.socket, host: str, security: Security) -> socket.socket:
    """The same connection in TLS, after the handshake."""
    context = ssl.create_default_context(cadata=security.trusted or None)
    context.check_hostname = security.check_hostname
    if security.certificate_chain:
        # Python loads a client's key from files only; this one is deleted before the handshake.
        with tempfile.TemporaryDirectory() as directory:
            pem = Path(directory) / "client.pem"
            pem.touch(mode=0o600)
            pem.write_text(f"{security.private_key}\n{security.certificate_chain}")
            context.load_cert_chain(pem, password=security.key_password or None)
    return context.wrap_socket(plain, server_hostname=host)


def authenticate(security: Security, exchange: Exchange) -> None:
    """Run the mechanism. ``exchange`` sends one token and returns the broker's."""
    if security.mechanism == "PLAIN":
        exchange(f"\0{security.username}\0{security.password}".encode())
        return
    try:
        _scram(security, exchange)
    except ValueError as broken:  # a number, base64 or UTF-8 that is none
        raise Disconnected(f"invalid SCRAM response from the broker: {broken}") from broken


def _scram(security: Security, exchange: Exchange) -> None:
    """RFC 5802 without channel binding, as in Kafka."""
    digest = _SCRAM_HASHES[security.mechanism]
    name = security.username.replace("=", "=3D").replace(",", "=2C")
    nonce = base64.b64encode(secrets.token_bytes(24)).decode()
    first_bare = f"n={name},r={nonce}"
    server_first = exchange(f"n,,{first_bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
    server_nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
    if not server_nonce.startswith(nonce) or iterations < _SCRAM_ITERATIONS_MIN:
        raise Disconnected("invalid SCRAM response from the broker")
    salted = hashlib.pbkdf2_hmac(
        digest, security.password.encode(), base64.b64decode(fields.get("s", "")), iterations
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
        # Another process may listen in the broker's place.
        raise Disconnected("the broker did not prove that it knows the SCRAM password")
