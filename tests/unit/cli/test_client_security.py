"""librdkafka's security settings, as Headrace's own client takes them."""

import pytest

from headrace.cli.client_security import security_of
from headrace.cli.output import CommandFailed
from headrace.client.security import Security


def test_without_settings_the_connection_is_plaintext():
    assert security_of({"client.id": "x"}) == Security()


def test_sasl_is_named_as_in_librdkafka():
    found = security_of(
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
    )
    assert found == Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "ann", "secret")


def test_certificates_are_read_from_files_or_given_as_text(tmp_path):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"the {name}")
    found = security_of(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "certificate"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "p",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert found == Security(
        "SSL",
        trusted="the ca",
        certificate_chain="the certificate",
        private_key="the key",
        key_password="p",
        check_hostname=False,
    )
    assert security_of({"security.protocol": "ssl", "ssl.ca.pem": "text"}).trusted == "text"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "it must be one of"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/none"}, "ssl.ca.location: "),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}, "sasl.mechanism"),
        ({"enable.ssl.certificate.verification": "false"}, "always verifies certificates"),
    ],
)
def test_a_setting_that_cannot_be_honored_is_refused(settings, message):
    with pytest.raises(CommandFailed, match=message):
        security_of(settings)
