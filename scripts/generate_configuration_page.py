"""Write docs/configuration.md from the tables of settings.

python scripts/generate_configuration_page.py            write the page
python scripts/generate_configuration_page.py --check    fail if it is not up to date
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from headrace.model.settings import descriptions, kafka, legacy_names  # noqa: E402
from headrace.model.settings.headrace import NODE_DEFAULTS, ON_ZOOKEEPER, OURS  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by scripts/generate_configuration_page.py; do not edit. -->

Headrace uses Apache Kafka's settings under Kafka's names. This page lists every setting of Kafka
4.3.1, and every broker setting that Kafka removed in earlier releases.

## How to change settings

```
headrace serve server.properties -X num.partitions=3 -X log.retention.hours=24
```

- In a `server.properties` file in Java's syntax. The file that Kafka 4.3 ships works unchanged.
- With `-X name=value` on the command line, which overrides the file.
- While the broker runs, with `headrace configs set`, `kafka-configs.sh` or any client. Such
  *dynamic* settings survive a restart. The column *changes* says where this is possible: for one
  *broker*, for the *cluster* (and for one broker), or only with a *restart*.
- On a topic, when it is created or later. The value of a topic overrides that of the broker; delete
  it to return to the value of the broker.

For a broker setting, the first of these counts: dynamic for this broker, dynamic for all brokers,
the file and `-X`, the default. If a setting exists in several units (`log.retention.ms`,
`.minutes`, `.hours`), the finest unit that is set counts.

An invalid value is refused; the error has the name and the expected value. An unknown name
produces a warning with the most similar name (`--strict` refuses it). Conflicting limits produce a
warning at start.

## Columns

| status | meaning |
|---|---|
| served | it works as in Kafka |
| successor | an old name; its successor is used, with a warning |
| no effect | it is checked and accepted but does nothing, for the given reason; the log says so |
| refused | the node does not start with it, for the given reason |

*Default* is the default of Kafka 4.3.1. A standalone node uses the value marked \\*. *Old default*
is the default of an earlier release, or the value in its sample files, if it differs. Sizes are in
bytes. `-` means no value.
"""

# Settings that prevent the start.
REFUSED = {"authorizer.class.name", "control.plane.listener.name"}

CHANGES = {"": "restart", "b": "broker", "c": "cluster"}

SUBJECTS = (
    ("Addresses and identity", ("advertised.", "broker.", "inter.broker.", "listener", "node.id",
                                "process.roles", "security.inter.broker", "early.start")),
    ("Connections and requests", ("connection", "fetch.", "max.connection", "max.incremental",
                                  "max.request", "queued.", "request.", "socket.", "num.io",
                                  "num.network", "background.threads", "producer.purgatory",
                                  "delete.records.purgatory")),
    ("Topics", ("auto.create", "default.replication", "delete.topic", "num.partitions",
                "create.topic.policy", "alter.config.policy", "min.insync", "unclean.")),
    ("The log", ("log.", "compression.", "message.max", "num.recovery", "num.replica.alter",
                 "cordoned.")),
    ("Producers and transactions", ("producer.id", "transaction", "add.partitions.to.txn")),
    ("Groups", ("group.", "offset", "share.")),
    ("Replication and controller", ("replica", "num.replica.fetchers", "controlled.", "auto.leader",
                                    "leader.", "controller.", "metadata.", "initial.broker",
                                    "internal.metadata", "unstable.", "server.max")),
    ("Security", ("sasl.", "ssl.", "delegation.", "authorizer.", "principal.", "security.")),
    ("Tiered storage", ("remote.", "follower.fetch")),
    ("Quotas and metrics", ("quota", "alter.log.dirs", "client.quota", "kafka.metrics", "metric",
                            "telemetry.", "config.providers")),
)  # fmt: skip


def page() -> str:
    parts = [INTRODUCTION, "## Broker settings\n"]
    for subject, names in by_subject(kafka.BROKER).items():
        parts += [f"### {subject}\n", settings_table({name: kafka.BROKER[name] for name in names})]
    parts += [
        "### Dynamic only\n\nThese cannot be set in a file.\n",
        settings_table(kafka.DYNAMIC_ONLY),
        "### Clusters on ZooKeeper\n\nSettings of Kafka 3.9, which Kafka 4 has removed.\n",
        settings_table(ON_ZOOKEEPER),
        "### Headrace\n",
        settings_table(OURS),
        "## Topic settings\n\nThe broker setting that a topic inherits is in parentheses.\n",
        settings_table(kafka.TOPIC, synonyms=True),
        "## Group settings\n",
        settings_table(kafka.GROUP, synonyms=True),
        "## Client metrics\n",
        settings_table(kafka.CLIENT_METRICS),
        "## Removed broker settings\n\nSettings of releases before 4.3.\n",
        old_table(legacy_names.BROKER),
        "## Removed topic settings\n\nRefused if a client sets them; accepted if an older cluster "
        "has stored them.\n",
        old_table(legacy_names.TOPIC),
        "## Client settings\n\nIn a broker file they produce a warning with the present name.\n",
        client_table(),
        f"`{'`, `'.join(legacy_names.ZOOKEEPER_FILE)}` belong into the configuration of ZooKeeper.",
    ]
    return "\n".join(parts) + "\n"


def by_subject(table: Mapping[str, kafka.Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {subject: [] for subject, _ in SUBJECTS}
    for name in table:
        # The longest prefix decides: num.replica.fetchers is not about log directories.
        fitting = [
            (len(beginning), subject)
            for subject, beginnings in SUBJECTS
            for beginning in beginnings
            if name.startswith(beginning)
        ]
        if not fitting:
            raise SystemExit(f"{name} fits no subject: add its prefix to SUBJECTS")
        found[max(fitting)[1]].append(name)
    return found


def settings_table(table: Mapping[str, kafka.Row], *, synonyms: bool = False) -> str:
    rows = []
    for name, (kind, default, rule, change, reason_key) in table.items():
        shown = f"`{name}`"
        synonym = kafka.TOPIC_SYNONYMS.get(name, (kafka.GROUP_SYNONYMS.get(name),))[0]
        if synonyms and synonym:
            shown += f" (`{synonym}`)"
        status, reason = ("served", descriptions.meaning_of(name) or "")
        if name in REFUSED:
            status, reason = "refused", descriptions.REASONS[reason_key]
        elif reason_key:
            status, reason = "no effect", descriptions.REASONS[reason_key]
        if name in kafka.INTERNAL:
            reason += " (not listed by DescribeConfigs)"
        rows.append(
            (
                shown,
                kind_of(kind, rule),
                default_of(name, default),
                value(descriptions.OLD_DEFAULTS[name]) if name in descriptions.OLD_DEFAULTS else "",
                CHANGES[change],
                status,
                reason,
            )
        )
    columns = (
        "setting",
        "type",
        "default",
        "old default",
        "changes",
        "status",
        "meaning or reason",
    )
    return markdown(columns, rows)


def default_of(name: str, default: str | None) -> str:
    here = NODE_DEFAULTS.get(name)
    return f"{value(default)} ({value(here)} \\*)" if here is not None else value(default)


def value(text: str | None) -> str:
    return "-" if text is None else f"`{text}`" if text else '""'


def kind_of(kind: str, rule: kafka.Rule) -> str:
    noun = {"str": "text", "bool": "boolean", "float": "double"}.get(kind, kind)
    if rule in (("throttled",), ("reset",)) or not isinstance(rule, tuple):
        return noun
    if isinstance(rule[0], str):
        return f"{noun}: {', '.join(str(word) for word in rule)}"
    low, high = rule[0], rule[1]
    limits = f"≥ {low}" if high is None else f"{low} … {high}"
    return f"{noun} {limits}" + "".join(f" or {extra}" for extra in rule[2:])


def old_table(table: Mapping[str, legacy_names.OldRow]) -> str:
    rows = []
    for name, (kind, default, successors, reason_key) in sorted(table.items()):
        if name in REFUSED:
            status, reason = "refused", "clusters on ZooKeeper come with a later release"
        elif successors:
            status = "successor"
            reason = " and ".join(
                f"`{successor}`" + (f" × {factor}" if factor != 1 else "")
                for successor, factor in successors
            )
        else:
            status, reason = "no effect", descriptions.REASONS[reason_key]
        rows.append((f"`{name}`", kind_of(kind, None), value(default), status, reason))
    return markdown(("setting", "type", "old default", "status", "successor or reason"), rows)


def client_table() -> str:
    rows = [
        (
            f"`{name}`",
            whose,
            value(default),
            f"`{today}`" if today else "removed",
            value(present) if today else "",
        )
        for name, (whose, default, today, present) in legacy_names.CLIENT.items()
    ]
    return markdown(("setting", "client", "old default", "present name", "present default"), rows)


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |"]
    lines.append("|" + "---|" * lines[0].count(" | ") + "---|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is out of date: run {Path(__file__).name}")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
