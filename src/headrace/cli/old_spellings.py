"""How Kafka's scripts were and are called, said in Headrace's words. Pure: words in, words out.

A script's name as the first word (``kafka-topics``, with or without ``.sh``)
means its Headrace command; so do a script's options behind a Headrace noun
(``headrace topics --create --topic orders``). What cannot be said in one
command is refused with the words that can.

``--zookeeper`` named the place of the cluster's state, never a broker. If it
names this machine, the broker of this machine is meant and asked; if it names
another one we would have to guess, and a guess may delete the wrong topic.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Translation(NamedTuple):
    arguments: list[str]
    remarks: tuple[str, ...] = ()


class Refusal(NamedTuple):
    message: str


def translated(arguments: Sequence[str]) -> Translation | Refusal:
    """The same request as ``headrace`` spells it; new spellings come back unchanged."""
    if not arguments:
        return Translation([])
    first, *rest = arguments
    script = re.sub(r"(\.sh|\.bat)$", "", first.rpartition("/")[2])
    try:
        if script == "kafka-run-class":
            return _run_class(rest)
        if script in _GONE:
            raise _Refused(_GONE[script])
        if script in _SCRIPTS:
            is_bare = not rest and script not in _WITHOUT_ARGUMENTS
            return _SCRIPTS[script].translate(["--help"] if is_bare else rest)
        if script.startswith(_FOREIGN):
            raise _Refused(
                f"{script} has no equivalent here; 'headrace --help' shows what there is, and "
                "Kafka's own scripts can be used with this broker"
            )
        if first in _NOUNS and any(word.partition("=")[0] in _MARKS[first] for word in rest):
            return _SCRIPTS[_NOUNS[first]].translate(rest)
    except _Refused as refused:
        return Refusal(refused.message)
    return Translation(list(arguments))


class _Refused(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Given(NamedTuple):
    """A script's options as they were given."""

    values: dict[str, list[str]]
    flags: set[str]
    positional: list[str]

    def last(self, name: str) -> str | None:
        found = self.values.get(name)
        return found[-1] if found else None

    def all(self, *names: str) -> list[str]:
        return [value for name in names for value in self.values.get(name, [])]


class _Script(NamedTuple):
    noun: str
    translate: Callable[[Sequence[str]], Translation]


# Options with a value that every script has, and what becomes of them.
_ADDRESS = ("--bootstrap-server", "--broker-list", "--zookeeper", "-b")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
_IGNORED_PROPERTIES = {
    "key.serializer",
    "value.serializer",
    "serializer.class",
    "key.serializer.class",
    "partitioner.class",
    "producer.type",
    "key.deserializer",
    "value.deserializer",
}
# Names of client settings from Kafka's history, as the client under us calls them.
_RENAMED_PROPERTIES = {
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "auto.commit.enable": "enable.auto.commit",
    "consumer.id": "client.id",
}


def _options(
    script: str, arguments: Sequence[str], with_value: Sequence[str], flags: Sequence[str]
) -> _Given:
    given = _Given({}, set(), [])
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in flags:
            given.flags.add(word)
        elif name in with_value and equals:
            given.values.setdefault(name, []).append(value)
        elif word in with_value:
            if not rest:
                raise _Refused(f"{script}: {word} needs a value")
            given.values.setdefault(word, []).append(rest.pop(0))
        elif word.startswith("-"):
            raise _Refused(
                f"{script}: {word} has no equivalent here; 'headrace {_SCRIPTS[script].noun} "
                "--help' shows what there is"
            )
        else:
            given.positional.append(word)
    return given


def _address(given: _Given, command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The option that names the broker, and remarks about how it was named."""
    remarks = []
    bootstrap = given.all("--bootstrap-server", "-b")
    if given.all("--broker-list"):
        remarks.append("--broker-list is now --bootstrap-server (-b)")
        bootstrap = bootstrap or given.all("--broker-list")
    zookeeper = given.last("--zookeeper")
    if zookeeper is not None:
        hosts = zookeeper.partition("/")[0].split(",")
        if not bootstrap and any(host.rpartition(":")[0] not in _LOCAL_HOSTS for host in hosts):
            raise _Refused(
                f"--zookeeper {zookeeper} does not say where a broker is; say "
                f"{_spoken([*command, '-b', 'HOST:9092'])}"
            )
        remarks.append("--zookeeper is gone: brokers are asked, with --bootstrap-server (-b)")
    return (["-b", bootstrap[-1]] if bootstrap else []), remarks


def _client_settings(given: _Given, *names: str) -> tuple[list[str], dict[str, str], list[str]]:
    """Client settings as -X, those that have an option of their own, and remarks."""
    spoken: list[str] = []
    special: dict[str, str] = {}
    remarks: list[str] = []
    for text in given.all(*names):
        name, _, value = text.partition("=")
        name = _RENAMED_PROPERTIES.get(name, name)
        if name in ("group.id", "acks", "compression.type", "bootstrap.servers"):
            special[name] = value
        elif name == "metadata.broker.list":
            special["bootstrap.servers"] = value
        elif name in _IGNORED_PROPERTIES:
            remarks.append(f"{name} is without effect: records are bytes here")
        else:
            spoken += ["-X", f"{name}={value}"]
    for path in given.all("--command-config", "--producer.config", "--consumer.config"):
        spoken += ["--client-config", path]
    return spoken, special, remarks


def _said(command: Sequence[str], given: _Given) -> Translation:
    """``command`` with the client's settings and the broker's address behind it."""
    settings, _, _ = _client_settings(given)
    return _addressed([*command, *settings], given)


def _addressed(
    command: Sequence[str],
    given: _Given,
    special: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
) -> Translation:
    """``command`` with the broker's address behind it, which a client setting may have named."""
    if special and "bootstrap.servers" in special:
        given.values.setdefault("--bootstrap-server", [special["bootstrap.servers"]])
    address, address_remarks = _address(given, command)
    return Translation([*command, *address], (*address_remarks, *remarks))


def _spoken(command: Sequence[str]) -> str:
    return f"'headrace {shlex.join(command)}'"


def _only(script: str, given: _Given, choices: Sequence[str]) -> str:
    chosen = [name for name in choices if name in given.flags]
    if len(chosen) != 1:
        raise _Refused(f"{script}: give one of {', '.join(choices)}")
    return chosen[0]


_TOPIC_ACTIONS = ("--create", "--list", "--describe", "--alter", "--delete")


def _topics(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-topics",
        arguments,
        (
            *_ADDRESS,
            "--topic",
            "--partitions",
            "--replication-factor",
            "--config",
            "--delete-config",
            "--command-config",
            "--format",
            "-X",
        ),
        (
            *_TOPIC_ACTIONS,
            "--if-exists",
            "--if-not-exists",
            "--exclude-internal",
            "--force",
            "--disable-rack-aware",
            "--help",
        ),
    )
    if "--help" in given.flags:
        return Translation(["topics", "--help"])
    action = _only("kafka-topics", given, _TOPIC_ACTIONS)
    names = [name for text in given.all("--topic") for name in text.split(",")]
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", name):
            raise _Refused(
                f"kafka-topics: {name!r} is a pattern; name the topics, "
                "'headrace topics list --names' prints them"
            )
    shape = [
        *_renamed(given, "--partitions", "--partitions"),
        *_renamed(given, "--replication-factor", "--replicas"),
    ]
    kept = [*_renamed(given, "--format", "--format"), *_renamed(given, "-X", "-X")]
    match action:
        case "--list":
            internal = ["--no-internal"] if "--exclude-internal" in given.flags else []
            return _said(["topics", "list", "--names", *internal, *kept], given)
        case "--describe":
            return _said(["topics", "describe", *names, *_internal(given), *kept], given)
    if not names:
        raise _Refused(f"kafka-topics {action}: --topic is missing")
    match action:
        case "--create":
            if_not_exists = ["--if-not-exists"] if "--if-not-exists" in given.flags else []
            config = _renamed(given, "--config", "--config")
            return _said(
                ["topics", "create", *names, *shape, *config, *if_not_exists, *kept], given
            )
        case "--delete":
            if_exists = ["--if-exists"] if "--if-exists" in given.flags else []
            return _said(["topics", "delete", *names, "--yes", *if_exists, *kept], given)
    return _alter_topic(given, names, kept)


def _internal(given: _Given) -> list[str]:
    """Kafka's scripts show internal topics unless they are told not to, ours when they are told."""
    excluded = {"--exclude-internal", "--exclude-internal-topics"} & given.flags
    named = given.all("--topic", "--topic-partitions", "--topic-list")
    return [] if excluded or named else ["--internal"]


def _alter_topic(given: _Given, names: list[str], kept: list[str]) -> Translation:
    """Partitions are the topic's; its settings moved to kafka-configs long ago."""
    added, removed = given.all("--config"), given.all("--delete-config")
    partitions = _renamed(given, "--partitions", "--partitions")
    ways = []
    if partitions:
        ways.append(["topics", "alter", names[0], *partitions, *kept])
    if added:
        unset = [word for key in removed for word in ("--unset", key)]
        ways.append(["configs", "set", "topic", names[0], *added, *unset, *kept])
    elif removed:
        ways.append(["configs", "unset", "topic", names[0], *removed, *kept])
    if not ways:
        raise _Refused("kafka-topics --alter: give --partitions, --config or --delete-config")
    if len(ways) > 1 or len(names) > 1:
        raise _Refused(
            "kafka-topics --alter: one change of one topic at a time; say "
            + " and ".join(_spoken(way) for way in ways)
        )
    said = _said(ways[0], given)
    if added or removed:
        remark = f"settings of topics are changed with {_spoken(ways[0][:2])}"
        return said._replace(remarks=(*said.remarks, remark))
    return said


def _renamed(given: _Given, old: str, new: str) -> list[str]:
    return [word for value in given.all(old) for word in (new, value)]


def _console_producer(arguments: Sequence[str]) -> Translation:
    # --compression-codec may stand without a value, and means gzip then.
    words: list[str] = []
    for index, word in enumerate(arguments):
        words.append(word)
        following = arguments[index + 1 : index + 2]
        if word == "--compression-codec" and (not following or following[0].startswith("-")):
            words.append("gzip")
    given = _options(
        "kafka-console-producer",
        words,
        (
            *_ADDRESS,
            "--topic",
            "--producer-property",
            "--command-property",
            "--property",
            "--reader-property",
            "--producer.config",
            "--command-config",
            "--request-required-acks",
            "--compression-codec",
            "--batch-size",
            "--timeout",
            "--message-send-max-retries",
            "--retry-backoff-ms",
            "--request-timeout-ms",
            "-X",
        ),
        ("--sync", "--help"),
    )
    topic = _one_topic("kafka-console-producer", given)
    if topic is None:
        return Translation(["produce", "--help"])
    settings, special, remarks = _client_settings(
        given, "--producer-property", "--command-property", "-X"
    )
    acks = given.last("--request-required-acks") or special.get("acks")
    codec = given.last("--compression-codec") or special.get("compression.type")
    extra = [*_reader(given)]
    if acks is not None:
        extra += ["--acks", "all" if acks == "-1" else acks]
    if codec is not None:
        extra += ["--compression", codec]
    for old, new in (
        ("--batch-size", "batch.size"),
        ("--timeout", "linger.ms"),
        ("--message-send-max-retries", "retries"),
        ("--retry-backoff-ms", "retry.backoff.ms"),
        ("--request-timeout-ms", "request.timeout.ms"),
    ):
        extra += [word for value in given.all(old) for word in ("-X", f"{new}={value}")]
    if "--sync" in given.flags:
        extra += ["-X", "batch.num.messages=1"]
    return _addressed(["produce", topic, *extra, *settings], given, special, remarks)


def _reader(given: _Given) -> list[str]:
    """The line reader's properties: how a line holds headers, key and value."""
    properties = dict(
        text.partition("=")[::2] for text in given.all("--property", "--reader-property")
    )
    spoken = []
    if properties.pop("parse.headers", "false") == "true":
        spoken += [
            "--header-separator",
            properties.pop("headers.delimiter", "\\t"),
            "--header-pair-separator",
            properties.pop("headers.key.separator", ":"),
        ]
    if properties.pop("parse.key", "false") == "true":
        spoken += ["--key-separator", properties.pop("key.separator", "\\t")]
    if "null.marker" in properties:
        spoken += ["--null-marker", properties.pop("null.marker")]
    # Without parse.key and parse.headers Kafka's reader ignores the separators too.
    for name in ("key.separator", "headers.delimiter", "headers.key.separator", "ignore.error"):
        properties.pop(name, None)
    if properties:
        raise _Refused(
            f"kafka-console-producer: the property {', '.join(sorted(properties))} has no "
            "equivalent here; 'headrace produce --help' shows what there is"
        )
    return spoken


def _one_topic(script: str, given: _Given) -> str | None:
    """None if help was asked for."""
    if "--help" in given.flags:
        return None
    names = [*given.all("--topic"), *given.positional]
    if len(names) != 1:
        raise _Refused(f"{script}: give one --topic")
    return names[0]


def _console_consumer(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-console-consumer",
        arguments,
        (
            *_ADDRESS,
            "--topic",
            "--partition",
            "--offset",
            "--max-messages",
            "--timeout-ms",
            "--group",
            "--consumer-property",
            "--command-property",
            "--consumer.config",
            "--command-config",
            "--property",
            "--formatter-property",
            "--isolation-level",
            "--key-deserializer",
            "--value-deserializer",
            "--format",
            "-X",
        ),
        ("--from-beginning", "--new-consumer", "--skip-message-on-error", "--help"),
    )
    topic = _one_topic("kafka-console-consumer", given)
    if topic is None:
        return Translation(["consume", "--help"])
    settings, special, remarks = _client_settings(
        given, "--consumer-property", "--command-property", "-X"
    )
    for name in given.all("--key-deserializer", "--value-deserializer"):
        if not name.endswith(("StringDeserializer", "ByteArrayDeserializer")):
            raise _Refused(
                f"kafka-console-consumer: {name} is a Java class; keys and values are printed "
                "as they are, or with --format json"
            )
    group = given.last("--group") or special.get("group.id")
    extra = ["--from-beginning"] if "--from-beginning" in given.flags else []
    for old, new in (
        ("--partition", "--partition"),
        ("--offset", "--offset"),
        ("--max-messages", "--max"),
        ("--format", "--format"),
    ):
        extra += _renamed(given, old, new)
    if (timeout_ms := given.last("--timeout-ms")) is not None:
        if not timeout_ms.isdigit():
            raise _Refused(f"kafka-console-consumer: --timeout-ms {timeout_ms} is no number")
        extra += ["--timeout", f"{int(timeout_ms) / 1000:g}"]
    if group is not None:
        extra += ["--group", group]
    if (isolation := given.last("--isolation-level")) is not None:
        extra += ["-X", f"isolation.level={isolation}"]
    extra += _formatter(given)
    return _addressed(["consume", topic, *extra, *settings], given, special, remarks)


def _formatter(given: _Given) -> list[str]:
    """The formatter's properties: which fields are printed, and what stands between them."""
    properties = dict(
        text.partition("=")[::2] for text in given.all("--property", "--formatter-property")
    )
    shown = {
        field: properties.pop(f"print.{field}", "true" if field == "value" else "false") == "true"
        for field in ("timestamp", "partition", "offset", "headers", "key", "value")
    }
    separator = properties.pop("key.separator", "\\t")
    line_end = properties.pop("line.separator", "\\n")
    if properties:
        raise _Refused(
            f"kafka-console-consumer: the property {', '.join(sorted(properties))} has no "
            "equivalent here; 'headrace consume --help' shows what there is"
        )
    if list(shown.values()) == [False] * 5 + [True] and line_end == "\\n":
        return []
    codes = {
        "timestamp": "%T",
        "partition": "%p",
        "offset": "%o",
        "headers": "%h",
        "key": "%k",
        "value": "%s",
    }
    between = separator.replace("%", "%%")
    fields = between.join(code for field, code in codes.items() if shown[field])
    return ["--format", fields + line_end.replace("%", "%%")]


_ENTITY_OPTIONS = {
    "--topic": "topic",
    "--broker": "broker",
    "--broker-logger": "broker-logger",
    "--group": "group",
}
_ENTITY_TYPES = {
    "topics": "topic",
    "brokers": "broker",
    "broker-loggers": "broker-logger",
    "groups": "group",
}


def _configs(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-configs",
        arguments,
        (
            *_ADDRESS,
            *_ENTITY_OPTIONS,
            "--entity-type",
            "--entity-name",
            "--add-config",
            "--delete-config",
            "--command-config",
            "--format",
            "-X",
        ),
        (
            "--alter",
            "--describe",
            "--all",
            "--entity-default",
            "--broker-defaults",
            "--force",
            "--help",
        ),
    )
    if "--help" in given.flags:
        return Translation(["configs", "--help"])
    action = _only("kafka-configs", given, ("--describe", "--alter"))
    entity = _entity(given)
    kept = [*_renamed(given, "--format", "--format"), *_renamed(given, "-X", "-X")]
    if action == "--describe":
        changed = [] if "--all" in given.flags else ["--changed"]
        return _said(["configs", "get", *entity, *changed, *kept], given)
    added = [pair for text in given.all("--add-config") for pair in _config_pairs(text)]
    removed = [key for text in given.all("--delete-config") for key in text.split(",")]
    if added:
        unset = [word for key in removed for word in ("--unset", key)]
        return _said(["configs", "set", *entity, *added, *unset, *kept], given)
    if removed:
        return _said(["configs", "unset", *entity, *removed, *kept], given)
    raise _Refused("kafka-configs --alter: give --add-config or --delete-config")


def _entity(given: _Given) -> list[str]:
    for option, kind in _ENTITY_OPTIONS.items():
        if (name := given.last(option)) is not None:
            return [kind, name]
    if "--broker-defaults" in given.flags:
        return ["broker", "default"]
    entity_type = given.last("--entity-type")
    if entity_type not in _ENTITY_TYPES:
        raise _Refused(
            f"kafka-configs: --entity-type {entity_type or 'is missing;'} is not served here; "
            f"there are {', '.join(_ENTITY_TYPES)}"
        )
    if entity_type == "brokers" and "--entity-default" in given.flags:
        return ["broker", "default"]
    name = given.last("--entity-name")
    if name is None:
        raise _Refused("kafka-configs: --entity-name is missing")
    return [_ENTITY_TYPES[entity_type], name]


def _config_pairs(text: str) -> list[str]:
    """``a=1,b=[x,y]`` as ``a=1`` and ``b=x,y``: brackets hold commas of a value together."""
    return [
        f"{name.strip()}={bracketed or plain}"
        for name, bracketed, plain in re.findall(r"([^=,]+)=(?:\[([^\]]*)\]|([^,]*)),?", text)
    ]


_TIMES = {"-1": "latest", "-2": "earliest", "-3": "max-timestamp"}


def _get_offsets(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-get-offsets",
        arguments,
        (
            *_ADDRESS,
            "--topic",
            "--partitions",
            "--topic-partitions",
            "--time",
            "--command-config",
        ),
        ("--exclude-internal-topics", "--help"),
    )
    if "--help" in given.flags:
        return Translation(["topics", "offsets", "--help"])
    partitions = given.last("--partitions")
    names = [f"{name}:{partitions}" if partitions else name for name in given.all("--topic")]
    names += [text for value in given.all("--topic-partitions") for text in value.split(",")]
    at = given.last("--time") or "latest"
    at = _TIMES.get(at, at)
    if at.startswith("-") or at in ("earliest-local", "latest-tiered"):
        raise _Refused(f"kafka-get-offsets: --time {at} asks for tiered storage, which is not here")
    command = ["topics", "offsets", *names, *_internal(given), "--time", at, "--plain"]
    return _said(command, given)


def _delete_records(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-delete-records",
        arguments,
        (*_ADDRESS, "--offset-json-file", "--command-config"),
        ("--help",),
    )
    if "--help" in given.flags:
        return Translation(["topics", "delete-records", "--help"])
    file = given.last("--offset-json-file")
    if file is None:
        raise _Refused("kafka-delete-records: --offset-json-file is missing")
    return _said(["topics", "delete-records", "--file", file, "--yes"], given)


def _log_dirs(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-log-dirs",
        arguments,
        (*_ADDRESS, "--topic-list", "--broker-list", "--command-config"),
        ("--describe", "--help"),
    )
    if "--help" in given.flags:
        return Translation(["log-dirs", "--help"])
    # Here alone --broker-list holds numbers of brokers, not their addresses.
    numbers = given.values.pop("--broker-list", [])
    brokers = [w for text in numbers for n in text.split(",") for w in ("--broker", n)]
    topics = [name for text in given.all("--topic-list") for name in text.split(",")]
    command = ["log-dirs", *topics, *_internal(given), *brokers, "--format", "json"]
    return _said(command, given)


_GROUP_ACTIONS = ("--list", "--describe", "--reset-offsets", "--delete", "--delete-offsets")


def _consumer_groups(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-consumer-groups",
        arguments,
        (
            *_ADDRESS,
            "--group",
            "--topic",
            "--timeout",
            "--command-config",
            *_RESET_PLACES,
            "--by-duration",
            "--shift-by",
            "--from-file",
        ),
        (
            *_GROUP_ACTIONS,
            *_RESET_WORDS,
            "--offsets",
            "--members",
            "--state",
            "--type",
            "--verbose",
            "--all-topics",
            "--all-groups",
            "--execute",
            "--dry-run",
            "--new-consumer",
            "--help",
        ),
    )
    if "--help" in given.flags:
        return Translation(["groups", "--help"])
    if given.positional:
        raise _Refused(
            f"kafka-consumer-groups: {given.positional[0]!r} is not understood; 'headrace groups "
            "list' shows all groups with state and type"
        )
    action = _only("kafka-consumer-groups", given, _GROUP_ACTIONS)
    if action == "--list":
        # Scripts read these lines; with --state or --type Kafka's tool prints columns too.
        names = [] if {"--state", "--type"} & given.flags else ["--names"]
        return _said(["groups", "list", *names], given)
    if "--state" in given.flags:
        raise _Refused(
            "kafka-consumer-groups --describe --state: 'headrace groups list' shows the state of "
            "all groups"
        )
    named = given.all("--group")
    if action == "--describe" and {"--all-groups", "--members"} & given.flags == {"--all-groups"}:
        return _said(["groups", "describe", "--all"], given)
    if not named:
        raise _Refused(f"kafka-consumer-groups {action}: --group is missing")
    match action:
        case "--describe" if "--members" not in given.flags:
            return _said(["groups", "describe", *named], given)
        case "--delete":
            return _said(["groups", "delete", *named], given)
    if len(named) > 1:
        raise _Refused(f"kafka-consumer-groups {action}: one --group at a time")
    topics = _renamed(given, "--topic", "--topic")
    match action:
        case "--describe":
            return _said(["groups", "members", *named], given)
        case "--delete-offsets":
            return _said(["groups", "delete-offsets", *named, *topics], given)
    execute = ["--execute"] if "--execute" in given.flags else []
    return _said(["groups", "reset", *named, *topics, *_reset_to(given), *execute], given)


_RESET_PLACES = ("--to-offset", "--to-datetime")
_RESET_WORDS = ("--to-earliest", "--to-latest", "--to-current")


def _reset_to(given: _Given) -> list[str]:
    """Where a group is to go, as ``groups reset`` says it."""
    ways = [["--to", word.removeprefix("--to-")] for word in _RESET_WORDS if word in given.flags]
    ways += [["--to", value] for value in given.all(*_RESET_PLACES)]
    ways += [["--to", _duration(value)] for value in given.all("--by-duration")]
    ways += [["--shift", value] for value in given.all("--shift-by")]
    ways += [["--from-file", value] for value in given.all("--from-file")]
    if len(ways) != 1:
        raise _Refused(
            "kafka-consumer-groups --reset-offsets: say one place to go to; "
            "'headrace groups reset --help' shows what there is"
        )
    return ways[0]


def _duration(text: str) -> str:
    """``P1DT2H30M`` as ``1d2h30m``."""
    spoken = re.fullmatch(r"P(?=.)(\d+D)?(?:T(?=\d)(\d+H)?(\d+M)?(\d+(?:\.\d+)?S)?)?", text.upper())
    if spoken is None:
        raise _Refused(f"kafka-consumer-groups: --by-duration {text} is not ISO 8601, as in PT2H")
    return "".join(part for part in spoken.groups() if part).lower()


def _transactions(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-transactions",
        arguments,
        (
            *_ADDRESS,
            "--command-config",
            "--transactional-id",
            "--transactional-id-pattern",
            "--duration-filter",
            "--topic",
            "--partition",
            "--start-offset",
            "--max-transaction-timeout",
        ),
        ("--help", "-h"),
    )
    if given.flags:
        return Translation(["transactions", "--help"])
    topic, partition = given.last("--topic"), given.last("--partition")
    place = [f"{topic}:{partition}" if partition is not None else topic] if topic else []
    match given.positional:
        case ["list"]:
            filters = _renamed(given, "--transactional-id-pattern", "--pattern")
            for milliseconds in given.all("--duration-filter"):
                filters += ["--longer-than", f"{milliseconds}ms"]
            return _said(["transactions", "list", *filters], given)
        case ["describe"]:
            names = given.all("--transactional-id")
            return _said(["transactions", "describe", *names], given)
        case ["find-hanging"]:
            age = [
                word
                for minutes in given.all("--max-transaction-timeout")
                for word in ("--older-than", f"{minutes}m")
            ]
            return _said(["transactions", "find-hanging", *place, *age], given)
        case ["abort"]:
            start = _renamed(given, "--start-offset", "--start-offset")
            if not start or partition is None:
                raise _Refused(
                    "kafka-transactions abort: --topic, --partition and --start-offset are needed"
                )
            return _said(["transactions", "abort", *place, *start, "--yes"], given)
    raise _Refused(
        f"kafka-transactions: {' '.join(given.positional) or 'nothing'} has no equivalent here; "
        "there are list, describe, find-hanging and abort"
    )


def _server_start(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-server-start",
        arguments,
        ("--override", "-name"),
        ("-daemon", "-loggc", "--help", "--version"),
    )
    if "--help" in given.flags:
        return Translation(["serve", "--help"])
    if "--version" in given.flags:
        return Translation(["version"])
    daemon = ["-daemon"] if "-daemon" in given.flags else []
    overrides = _renamed(given, "--override", "-X")
    return Translation(["serve", *given.positional, *overrides, *daemon])


def _server_stop(arguments: Sequence[str]) -> Translation:
    if "--help" in arguments:
        return Translation(["stop", "--help"])
    if arguments:
        raise _Refused(
            "kafka-server-stop: say which broker by its folder, 'headrace stop --data DIR', or "
            "by its file, 'headrace stop server.properties'"
        )
    return Translation(["stop"])


def _producer_perf(arguments: Sequence[str]) -> Translation:
    words = list(arguments)
    properties = []
    if "--producer-props" in words:
        # Takes everything up to the next option.
        start = words.index("--producer-props")
        end = start + 1
        while end < len(words) and not words[end].startswith("--"):
            end += 1
        properties = words[start + 1 : end]
        del words[start:end]
    given = _options(
        "kafka-producer-perf-test",
        words,
        (
            *_ADDRESS,
            "--topic",
            "--num-records",
            "--record-size",
            "--throughput",
            "--producer.config",
            "--command-config",
            "--command-property",
        ),
        ("--print-metrics", "--help"),
    )
    topic = _one_topic("kafka-producer-perf-test", given)
    if topic is None:
        return Translation(["perf", "produce", "--help"])
    given.values.setdefault("--command-property", []).extend(properties)
    settings, special, remarks = _client_settings(given, "--command-property")
    command = ["perf", "produce", topic]
    command += _renamed(given, "--num-records", "--records")
    command += _renamed(given, "--record-size", "--size")
    throughput = given.last("--throughput")
    if throughput is not None and not throughput.startswith("-"):
        command += ["--rate", throughput]
    if "acks" in special:
        command += ["--acks", "all" if special["acks"] == "-1" else special["acks"]]
    if "compression.type" in special:
        command += ["--compression", special["compression.type"]]
    return _addressed([*command, *settings], given, special, remarks)


def _consumer_perf(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-consumer-perf-test",
        arguments,
        (
            *_ADDRESS,
            "--topic",
            "--messages",
            "--num-records",
            "--timeout",
            "--command-config",
            "--consumer.config",
            "--group",
            "--fetch-size",
            "--reporting-interval",
            "--threads",
            "--num-fetch-threads",
        ),
        ("--show-detailed-stats", "--hide-header", "--print-metrics", "--from-latest", "--help"),
    )
    topic = _one_topic("kafka-consumer-perf-test", given)
    if topic is None:
        return Translation(["perf", "consume", "--help"])
    command = ["perf", "consume", topic]
    command += _renamed(given, "--messages", "--records")
    command += _renamed(given, "--num-records", "--records")
    return _said(command, given)


def _dump_log(arguments: Sequence[str]) -> Translation:
    given = _options(
        "kafka-dump-log",
        arguments,
        ("--files", "--max-message-size", "--max-bytes"),
        (
            "--print-data-log",
            "--deep-iteration",
            "--verify-index-only",
            "--index-sanity-check",
            "--help",
        ),
    )
    if "--help" in given.flags:
        return Translation(["dump-log", "--help"])
    files = [path for text in given.all("--files") for path in text.split(",")]
    if not files:
        raise _Refused("kafka-dump-log: --files is missing")
    deep = ["--deep"] if {"--print-data-log", "--deep-iteration"} & given.flags else []
    verify = (
        ["--verify-index"] if {"--verify-index-only", "--index-sanity-check"} & given.flags else []
    )
    return Translation(["dump-log", *files, *deep, *verify])


def _run_class(arguments: Sequence[str]) -> Translation | Refusal:
    if not arguments:
        raise _Refused("kafka-run-class: the class is missing")
    name, *rest = arguments
    script = _CLASSES.get(name.rpartition(".")[2])
    if script is None:
        raise _Refused(f"kafka-run-class: {name} is a Java class without an equivalent here")
    return translated([script, *rest])


_CLASSES = {
    "TopicCommand": "kafka-topics",
    "ConfigCommand": "kafka-configs",
    "ConsoleProducer": "kafka-console-producer",
    "ConsoleConsumer": "kafka-console-consumer",
    "GetOffsetShell": "kafka-get-offsets",
    "DeleteRecordsCommand": "kafka-delete-records",
    "LogDirsCommand": "kafka-log-dirs",
    "ConsumerGroupCommand": "kafka-consumer-groups",
    "TransactionsCommand": "kafka-transactions",
    "DumpLogSegments": "kafka-dump-log",
    "ProducerPerformance": "kafka-producer-perf-test",
    "ConsumerPerformance": "kafka-consumer-perf-test",
    "ShutdownBroker": "kafka-shutdown-broker",
}

_SCRIPTS = {
    "kafka-topics": _Script("topics", _topics),
    "kafka-configs": _Script("configs", _configs),
    "kafka-console-producer": _Script("produce", _console_producer),
    "kafka-console-consumer": _Script("consume", _console_consumer),
    "kafka-get-offsets": _Script("topics", _get_offsets),
    "kafka-delete-records": _Script("topics", _delete_records),
    "kafka-log-dirs": _Script("log-dirs", _log_dirs),
    "kafka-consumer-groups": _Script("groups", _consumer_groups),
    "kafka-transactions": _Script("transactions", _transactions),
    "kafka-server-start": _Script("serve", _server_start),
    "kafka-server-stop": _Script("stop", _server_stop),
    "kafka-producer-perf-test": _Script("perf", _producer_perf),
    "kafka-consumer-perf-test": _Script("perf", _consumer_perf),
    "kafka-dump-log": _Script("dump-log", _dump_log),
}
_WITHOUT_ARGUMENTS = ("kafka-server-stop",)
# How the names of all other scripts of Kafka begin.
_FOREIGN = ("kafka-", "connect-", "zookeeper-")

# A Headrace noun, the script whose options it also takes, and what betrays them.
_NOUNS = {
    "topics": "kafka-topics",
    "configs": "kafka-configs",
    "produce": "kafka-console-producer",
    "consume": "kafka-console-consumer",
    "groups": "kafka-consumer-groups",
}
_MARKS = {
    "topics": {*_TOPIC_ACTIONS},
    "groups": {*_GROUP_ACTIONS},
    "configs": {"--alter", "--describe", "--entity-type", "--add-config", "--delete-config"},
    "produce": {
        "--topic",
        "--broker-list",
        "--zookeeper",
        "--producer-property",
        "--property",
        "--reader-property",
        "--request-required-acks",
        "--compression-codec",
        "--sync",
    },
    "consume": {
        "--topic",
        "--broker-list",
        "--zookeeper",
        "--consumer-property",
        "--property",
        "--formatter-property",
        "--max-messages",
        "--timeout-ms",
        "--isolation-level",
        "--new-consumer",
    },
}

_NO_ZOOKEEPER = (
    "one node needs no ZooKeeper: 'headrace serve' keeps the cluster's state beside its logs"
)
# What has no command: why, and what to say instead.
_GONE = {
    "zookeeper-server-start": _NO_ZOOKEEPER,
    "zookeeper-server-stop": _NO_ZOOKEEPER,
    "zookeeper-shell": _NO_ZOOKEEPER,
    "zkServer": _NO_ZOOKEEPER,
    "kafka-shutdown-broker": (
        "ShutdownBroker is gone: a broker that is told to stop hands over by itself; "
        "say 'headrace stop --data DIR'"
    ),
    "kafka-e2e-latency": "'headrace perf latency TOPIC' measures that",
    "kafka-groups": "'headrace groups list' shows the groups of consumers with state and type",
    "kafka-preferred-replica-election": (
        "on one node every leader is the preferred one, so there is nothing to elect"
    ),
    "kafka-leader-election": (
        "on one node every leader is the preferred one, so there is nothing to elect; a partition "
        "whose disk is lost begins anew by Kafka's own kafka-leader-election --election-type "
        "unclean"
    ),
    "kafka-reassign-partitions": (
        "on one node partitions can only go to another of log.dirs: Kafka's own "
        "kafka-reassign-partitions moves them there, and 'headrace log-dirs' shows how far they are"
    ),
    "kafka-storage": (
        "folders need no formatting: 'headrace serve --data DIR' makes what it needs"
    ),
}
