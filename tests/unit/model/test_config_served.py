"""A setting that is said to be served is read by the broker somewhere."""

import re
from pathlib import Path

import headrace
from headrace.model.settings import kafka
from headrace.model.settings.headrace import OURS

SOURCE = Path(headrace.__file__).parent
# The tables and the pages about settings name them all; that is not reading them.
ABOUT_SETTINGS = (
    *(f"model/settings/{name}.py" for name in ("kafka", "descriptions", "legacy_names")),
    "cli/",
)


def code_of_the_broker():
    return "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(ABOUT_SETTINGS)
    )


def test_every_served_setting_is_read():
    code = code_of_the_broker()
    topic_name_of = {
        synonym: name for name, synonyms in kafka.TOPIC_SYNONYMS.items() for synonym in synonyms
    } | {name: name for name in kafka.TOPIC}

    def is_read(name):
        topic_name = topic_name_of.get(name, "").replace(".", "_")
        attribute = topic_name and re.search(rf"\.{topic_name}\b", code)
        # Internal topics are shaped by settings that are named by a prefix and a common end.
        shape = re.fullmatch(
            r"(.+)\.(num\.partitions|replication\.factor|min\.isr|segment\.bytes)", name
        )
        composed = shape and f'"{shape[1]}"' in code and f'f"{{prefix}}.{shape[2]}"' in code
        # Those of a group may be its own or the broker's, within bounds of the broker's.
        of_group = re.fullmatch(r"group\.consumer\.(min\.|max\.)?(.+\.ms)", name)
        within = of_group and (not of_group[1] or '"group.{family}.{bound}.{rest}"' in code)
        grouped = within and f'"{of_group[2]}"' in code and 'f"group.consumer.{name}"' in code
        return f'"{name}"' in code or bool(attribute) or bool(composed) or bool(grouped)

    served = [
        name
        for table in (kafka.BROKER, kafka.TOPIC, OURS)
        for name, row in table.items()
        if not row.no_effect and name != "internal.segment.bytes"  # folded into segment.bytes
    ]
    unread = [name for name in served if not is_read(name)]
    # Compaction is switched on as a whole.
    if not is_read("log.cleaner.enable"):
        unread = [n for n in unread if not n.startswith(("log.cleaner.", "min.cleanable."))]
    assert unread == [], "read them, or say in settings/kafka.py why they have no effect"


def test_what_is_said_to_have_no_effect_is_read_by_nobody():
    code = code_of_the_broker()
    read = [
        name
        for table in (kafka.BROKER, kafka.TOPIC, kafka.GROUP)
        for name, row in table.items()
        if row.no_effect and re.search(rf'config\.\w+\(\s*"{re.escape(name)}"', code)
    ]
    assert read == [], "say in settings/kafka.py that they are served"
