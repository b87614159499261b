"""The configuration page is generated from the current tables."""

from scripts.generate_configuration_page import PAGE, page

from headrace.model.settings import kafka, legacy_names


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run python scripts/generate_configuration_page.py"
    )


def test_every_setting_has_a_row():
    text = page()
    for table in (
        kafka.BROKER,
        kafka.TOPIC,
        kafka.GROUP,
        kafka.CLIENT_METRICS,
        legacy_names.BROKER,
    ):
        for name in table:
            assert f"| `{name}`" in text, name
