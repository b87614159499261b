"""librdkafka's settings for TLS and SASL, for the commands that use Headrace's own client."""

from collections.abc import Mapping
from pathlib import Path

from headrace.cli import values
from headrace.client.security import Security, parse_security
from headrace.model.errors import ConfigError

# By librdkafka's name: the name in the Java client for the same text, and for a file's text.
_TEXTS = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.mechanisms": "sasl.mechanism",
}
_FILES = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}


def security_of(settings: Mapping[str, str]) -> Security:
    """Raises CommandFailed for a setting that the client cannot honor."""
    java = dict(settings)
    for name, java_name in _TEXTS.items():
        if name in settings:
            java[java_name] = settings[name]
    for name, java_name in _FILES.items():
        if name in settings:
            java[java_name] = _text(name, Path(settings[name]))
    if settings.get("ssl.endpoint.identification.algorithm", "").lower() == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise values.wrong(
            "this command always verifies certificates; name the broker's certificate with "
            "-X ssl.ca.location=FILE instead of enable.ssl.certificate.verification=false"
        )
    try:
        return parse_security(java)
    except ConfigError as failure:
        raise values.wrong(str(failure)) from None


def _text(name: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise values.wrong(f"{name}: {failure}") from None
