"""Settings by Kafka's names: reading a properties file, checking, defaults, a topic's view.

A ``BrokerConfig`` is what a node runs with: given values over Kafka 4.3.1's
defaults, with the dynamic ones on top. A ``TopicConfig`` is one topic's view of
it: the topic's own value wins over the broker's twin, and without one the
broker's comes back.

Nothing that was given is dropped in silence. A bad value is refused by name, an
unknown name is a warning (or refused, when strict), an old name is taken as its
successor, and what has no effect here is said to have none.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.errors import ConfigError
from headrace.model.ids import BrokerId
from headrace.model.settings.kafka import (
    BROKER,
    DYNAMIC_ONLY,
    NEVER_EMPTY,
    TOPIC,
    TOPIC_TWINS,
    Row,
)

Value = bool | int | float | str | list[str] | None

OURS: dict[str, Row] = {
    "headrace.validate.records": ("bool", "false", None, "c", ""),
}

# Where a node on its own must differ from Kafka: internal topics cannot have
# three replicas on one broker, and nobody outside should reach a node that was
# not told so.
NODE_DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# Reasons that are no news to anyone: the setting tunes a mechanism that this
# design does without, so nothing the user asked for is missing.
_QUIET_REASONS = frozenset(
    {"loop", "pool", "recovery", "cleaner", "cleaner_buffer", "parked", "quorum", "generation"}
)

_BITS = {"short": 16, "int": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_LIST_SEPARATOR = re.compile(r"\s*,\s*")
_LISTENER = re.compile(r"([^:]*)://(?:\[([0-9a-zA-Z\-%._:]*)\]|([0-9a-zA-Z\-%._]*)):(-?[0-9]+)")
_THROTTLED = re.compile(r"[0-9]+:[0-9]+")
_BY_DURATION = re.compile(
    r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.ASCII
)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HOUR_MS = 3_600_000


class Listener(NamedTuple):
    """One address with its name. An empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class TopicConfig(NamedTuple):
    """What one topic lives by: an attribute per topic setting, dots as underscores.

    ``internal.segment.bytes`` is folded into ``segment_bytes``, as Kafka does: it
    is the way to segments below a megabyte.
    """

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool


def parse_properties(text: str) -> dict[str, str]:
    """Read Java's ``.properties`` syntax: continued lines, escapes, ``=``, ``:`` or a blank."""
    values: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\n|\r", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _ends_in_open_backslash(line):
            following = next(lines, None)
            line = line[:-1]
            if following is None:
                break
            line += following.lstrip(" \t\f")
        key, value = _split_property(line)
        values[_unescape(key)] = _unescape(value)
    return values


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape.startswith("u") and len(escape) == 5:
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replaced, text, flags=re.DOTALL)


def parse_value(name: str, text: str, row: Row) -> Value:
    """Turn the text of one setting into its value, or refuse it by name."""
    kind, _, rule, _, _ = row
    text = text.strip()
    value: Value
    if kind in _BITS:
        if not _INTEGER.fullmatch(text) or not _fits(int(text), _BITS[kind]):
            raise _refused(name, text, row)
        value = int(text)
    elif kind == "float":
        try:
            value = float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
        except ValueError:
            raise _refused(name, text, row) from None
        if "_" in text or math.isnan(value):
            raise _refused(name, text, row)
    elif kind == "bool":
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise _refused(name, text, row)
        return lowered == "true"
    elif kind == "list":
        return _parse_list(name, text, row)
    else:
        if rule == "" and not text:
            raise _refused(name, text, row)
        if isinstance(rule, tuple):
            allowed = text.lower() in rule if rule[0] == str(rule[0]).lower() else text in rule
            if rule == ("reset",):
                allowed = text in ("latest", "earliest") or bool(_BY_DURATION.fullmatch(text))
            if not allowed:
                raise _refused(name, text, row)
        return text
    if isinstance(rule, tuple):
        low, high = rule[0], rule[1]
        below = isinstance(low, int | float) and value < low
        above = isinstance(high, int | float) and value > high
        if (below or above) and value not in rule[2:]:
            raise _refused(name, text, row)
    return value


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _parse_list(name: str, text: str, row: Row) -> list[str]:
    rule = row[2]
    items = _LIST_SEPARATOR.split(text) if text else []
    if not items:
        if name in NEVER_EMPTY:
            raise _refused(name, text, row)
        return items
    if rule == ("throttled",):
        if items != ["*"] and not all(_THROTTLED.fullmatch(item) for item in items):
            raise _refused(name, text, row)
    elif "" in items or len(set(items)) < len(items):
        raise ConfigError(f"{name}={text}: expected a list without empty or repeated entries")
    elif isinstance(rule, tuple) and not set(items) <= set(rule):
        raise _refused(name, text, row)
    return items


def _refused(name: str, text: str, row: Row) -> ConfigError:
    shown = "(hidden)" if row[0] == "password" else text
    return ConfigError(f"{name}={shown}: expected {expected(row)}")


def expected(row: Row) -> str:
    """What a value of this setting must look like, in words."""
    kind, _, rule, _, _ = row
    if kind == "bool":
        return "true or false"
    if rule == ("throttled",):
        return "* or a list of partition:broker"
    if rule == ("reset",):
        return "latest, earliest or by_duration: with an ISO 8601 duration"
    if kind == "list":
        if isinstance(rule, tuple):
            return "a list of " + ", ".join(map(str, rule))
        return "a list, separated by commas"
    if kind in _BITS or kind == "float":
        noun = "a number" if kind == "float" else f"an integer of {_BITS[kind]} bits"
        if not isinstance(rule, tuple):
            return noun
        low, high = rule[0], rule[1]
        limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
        besides = "".join(f", or {extra}" for extra in rule[2:])
        noun = noun if high is not None or kind == "float" else noun.split(" of ")[0]
        return f"{noun} {limits}{besides}"
    if isinstance(rule, tuple):
        return "one of " + ", ".join(map(str, rule))
    return "a text that is not empty"


def value_to_text(value: Value) -> str | None:
    """A value as Kafka prints it: lists joined by commas, lower-case booleans, Java's doubles."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        mantissa, _, exponent = repr(value).partition("e")
        if exponent:
            mantissa = mantissa if "." in mantissa else mantissa + ".0"
            return f"{mantissa}E{int(exponent)}"
        return mantissa
    return str(value)


def row_of(name: str) -> Row | None:
    """The facts of a broker setting, ours included."""
    return BROKER.get(name) or OURS.get(name) or DYNAMIC_ONLY.get(name)


# The return types below name the builtins that the accessors of BrokerConfig hide.
_Int = int
_Float = float
_Str = str
_Bool = bool
_List = list


class BrokerConfig:
    """The settings of one node. Made by ``parse``; never changed afterwards.

    ``listeners`` are the addresses to open; ``advertised_listeners`` what clients
    are told, by the same names. An advertised host that is empty stands for the
    name of this machine and an advertised port 0 for the port that was bound: only
    the shell can know them.
    """

    __slots__ = (
        "original",
        "warnings",
        "notes",
        "listeners",
        "advertised_listeners",
        "inter_broker_listener",
        "node_id",
        "node_id_is_given",
        "_given",
        "_dynamic",
        "_parsed",
        "_topic_defaults",
    )

    original: Mapping[_Str, _Str]
    warnings: _List[_Str]
    notes: _List[_Str]
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    inter_broker_listener: _Str
    node_id: BrokerId
    node_id_is_given: _Bool
    _given: dict[_Str, _Str]
    _dynamic: Mapping[_Str, _Str]
    _parsed: dict[_Str, Value]
    _topic_defaults: TopicConfig | None

    @classmethod
    def parse(cls, values: Mapping[_Str, _Str], *, strict: _Bool = False) -> "BrokerConfig":
        """Check what was given and work out what follows from it."""
        config = cls()
        config.original = dict(values)
        config.warnings = []
        config.notes = []
        config._given = {}
        config._dynamic = {}
        config._parsed = {}
        config._topic_defaults = None
        old: dict[_Str, _Str] = {}
        for name, text in values.items():
            name = name.strip()
            row = BROKER.get(name) or OURS.get(name)
            if row is not None:
                config._take(name, text.strip(), row)
            else:
                old[name] = text.strip()
        if old:
            config._take_old(old, strict)
        config._settle_node_id()
        config._settle_roles()
        config._settle_listeners()
        config._check_limits()
        return config

    def with_dynamic(self, overrides: Mapping[_Str, _Str]) -> "BrokerConfig":
        """The same file with these dynamic settings on top, instead of any earlier ones."""
        config = BrokerConfig()
        config.original = self.original
        config.warnings = []
        config.notes = []
        config.node_id = self.node_id
        config.node_id_is_given = self.node_id_is_given
        config.listeners = self.listeners
        config.advertised_listeners = self.advertised_listeners
        config.inter_broker_listener = self.inter_broker_listener
        config._given = self._given
        config._dynamic = dict(overrides)
        config._parsed = {}
        config._topic_defaults = None
        for name, text in overrides.items():
            row = _dynamic_row(name)
            config._parsed[name] = parse_value(name, text, row)
        config._check_limits()
        return config

    def int(self, name: _Str) -> _Int:
        value = self._value(name)
        assert isinstance(value, _Int), f"{name} is no integer: {value!r}"
        return value

    def float(self, name: _Str) -> _Float:
        value = self._value(name)
        assert isinstance(value, _Float), f"{name} is no number: {value!r}"
        return value

    def bool(self, name: _Str) -> _Bool:
        value = self._value(name)
        assert isinstance(value, _Bool), f"{name} is no boolean: {value!r}"
        return value

    def str(self, name: _Str) -> _Str:
        value = self._value(name)
        assert isinstance(value, _Str), f"{name} is no text: {value!r}"
        return value

    def list(self, name: _Str) -> _List[_Str]:
        value = self._value(name)
        assert isinstance(value, _List), f"{name} is no list: {value!r}"
        return value

    def optional_int(self, name: _Str) -> _Int | None:
        return None if self._value(name) is None else self.int(name)

    def optional_str(self, name: _Str) -> _Str | None:
        return None if self._value(name) is None else self.str(name)

    def for_listener(self, listener: _Str, name: _Str) -> Value:
        """``listener.name.<listener>.<name>`` if it was given, else None."""
        prefixed = f"listener.name.{listener.lower()}.{name}"
        text = self._dynamic.get(prefixed, self._given.get(prefixed))
        return None if text is None else parse_value(prefixed, text, BROKER[name])

    def given_text(self, name: _Str) -> _Str | None:
        """The text of the file for a present name, successors included; None without one."""
        return self._given.get(name)

    def default_text(self, name: _Str) -> _Str | None:
        """The default of a present name on this node."""
        row = row_of(name)
        assert row is not None, f"{name} is no setting"
        return NODE_DEFAULTS.get(name, row[1])

    def _value(self, name: _Str) -> Value:
        try:
            return self._parsed[name]
        except KeyError:
            value = self._parsed[name] = self._resolve(name)
            return value

    def _resolve(self, name: _Str) -> Value:
        row = row_of(name)
        if row is None:
            raise KeyError(f"{name} is no broker setting")
        text = self._dynamic.get(name)
        if text is None:
            text = self._given.get(name)
        if text is None:
            text = NODE_DEFAULTS.get(name, row[1])
        if text is not None:
            return parse_value(name, text, row)
        # The finer unit wins; without it the coarser ones speak, as in Kafka.
        match name:
            case "log.retention.ms":
                minutes = self.optional_int("log.retention.minutes")
                if minutes is None:
                    minutes = self.int("log.retention.hours") * 60
                return minutes * 60_000 if minutes >= 0 else -1
            case "log.roll.ms":
                return self.int("log.roll.hours") * _HOUR_MS
            case "log.roll.jitter.ms":
                return self.int("log.roll.jitter.hours") * _HOUR_MS
            case "log.flush.interval.ms":
                return self.int("log.flush.scheduler.interval.ms")
            case "log.dirs":
                return self.list("log.dir")
            case "advertised.listeners":
                return self.list("listeners")
            case "num.replica.alter.log.dirs.threads":
                return len(self.list("log.dirs"))
            case _:
                return None

    def _take(self, name: _Str, text: _Str, row: Row) -> None:
        self._parsed[name] = parse_value(name, text, row)
        self._given[name] = text
        if row[4]:
            self._no_effect(name, row[4], changed=text != NODE_DEFAULTS.get(name, row[1]))

    def _no_effect(self, name: _Str, reason_key: _Str, *, changed: _Bool) -> None:
        from headrace.model.settings.words import REASONS

        line = f"{name} has no effect: {REASONS[reason_key]}"
        if changed and reason_key not in _QUIET_REASONS:
            self.warnings.append(line)
        else:
            self.notes.append(line)

    def _take_old(self, values: Mapping[_Str, _Str], strict: _Bool) -> None:
        from headrace.model.settings import old

        for name, text in values.items():
            row = old.BROKER.get(name)
            if name == "zookeeper.connect":
                raise ConfigError(
                    f"{name}={text}: clusters on ZooKeeper are not served yet; "
                    "leave the setting out to run a node of its own"
                )
            if row is None:
                self._take_unlisted(name, text, strict)
                continue
            kind, default, successors, reason_key = row
            value = parse_value(name, text, (kind, default, None, "", ""))
            if not successors:
                self._no_effect(name, reason_key, changed=text != default)
            elif successors[0][0] not in ("listeners", "advertised.listeners"):
                for successor, factor in successors:
                    self._succeed(name, value, successor, factor)
        self._take_old_addresses(values)

    def _succeed(self, name: _Str, value: Value, successor: _Str, factor: _Int) -> None:
        if successor in self._given:
            self.warnings.append(f"{name} has no effect: {successor} is given too and wins")
            return
        text = value_to_text(value * factor if isinstance(value, _Int) else value)
        self._take(successor, text or "", BROKER[successor])
        self.warnings.append(f"{name} is an old name: taken as {successor}={text}")

    def _take_old_addresses(self, values: Mapping[_Str, _Str]) -> None:
        for target, host_name, port_name in (
            ("listeners", "host.name", "port"),
            ("advertised.listeners", "advertised.host.name", "advertised.port"),
        ):
            names = [name for name in (host_name, port_name) if name in values]
            if not names:
                continue
            if target in self._given:
                for name in names:
                    self.warnings.append(f"{name} has no effect: {target} is given too and wins")
                continue
            first = self.list("listeners")[0].rpartition(":")
            host = values.get(host_name, first[0].partition("://")[2])
            port = values.get(port_name, first[2])
            host = f"[{host}]" if ":" in host and not host.startswith("[") else host
            text = f"PLAINTEXT://{host}:{port}"
            self._take(target, text, BROKER[target])
            for name in names:
                self.warnings.append(f"{name} is an old name: taken as {target}={text}")

    def _take_unlisted(self, name: _Str, text: _Str, strict: _Bool) -> None:
        """A name in no table of the broker: a listener's own, a plug-in's, or a mistake."""
        if name.startswith("listener.name."):
            _, _, inner = name.removeprefix("listener.name.").partition(".")
            row = BROKER.get(inner)
            if row is not None:
                parse_value(name, text, row)
                self._given[name] = text
                if row[4]:
                    self._no_effect(name, row[4], changed=True)
                return
            if inner.partition(".")[2].startswith(("sasl.", "ssl.", "connections.max.reauth")):
                self._no_effect(name, "sasl", changed=True)
                return
        for prefix, reason_key in (("rsm.config.", "tiered"), ("rlmm.config.", "tiered")):
            if name.startswith(prefix):
                self._no_effect(name, reason_key, changed=True)
                return
        problem = f"{name} is not a broker setting{_suggestion(name)}"
        if strict:
            raise ConfigError(problem)
        self.warnings.append(f"{problem}; it has no effect")

    def _settle_node_id(self) -> None:
        node_id = self.optional_int("node.id") if "node.id" in self._given else None
        broker_id = self.int("broker.id")
        if broker_id < 0 and broker_id != -1:
            raise ConfigError(f"broker.id={broker_id}: expected an integer of at least 0")
        if node_id is not None and broker_id >= 0 and node_id != broker_id:
            raise ConfigError(
                f"broker.id={broker_id}: node.id={node_id} says otherwise; "
                "give one of them, or both the same"
            )
        self.node_id_is_given = node_id is not None or broker_id >= 0
        if node_id is None:
            node_id = broker_id if broker_id >= 0 else self.int("node.id")
        self.node_id = BrokerId(node_id)
        self._parsed["node.id"] = self._parsed["broker.id"] = node_id

    def _settle_roles(self) -> None:
        """A file for Kafka's combined mode runs as it is; one that needs other nodes does not."""
        roles = self.list("process.roles")
        if roles and "broker" not in roles:
            raise ConfigError(
                "process.roles=controller: expected broker or broker,controller; "
                "a node without clients has nothing to do here"
            )
        for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
            addresses = self.list(name)
            if len(addresses) > 1:
                raise ConfigError(
                    f"{name}={','.join(addresses)}: expected this node alone; "
                    "clusters are not served yet"
                )
            if addresses and roles == ["broker"]:
                raise ConfigError(
                    f"{name}={addresses[0]}: a controller elsewhere is not served yet; "
                    "with process.roles=broker,controller this node is its own"
                )

    def _settle_listeners(self) -> None:
        protocols = self._protocol_map()
        controller_names = [name.upper() for name in self.list("controller.listener.names")]
        opened = []
        for listener in self._listeners("listeners", protocols, controller_names):
            if listener.name in controller_names:
                self.notes.append(
                    f"listener {listener} is not opened: the controller lives in this process"
                )
            else:
                opened.append(listener)
        if not opened:
            raise ConfigError(
                f"listeners={','.join(self.list('listeners'))}: "
                "expected one that is not in controller.listener.names"
            )
        _refuse_shared_ports(opened)
        self.listeners = tuple(opened)
        self.advertised_listeners = self._advertised(protocols, controller_names)
        self.inter_broker_listener = self._inter_broker_listener()

    def _protocol_map(self) -> dict[_Str, _Str]:
        name = "listener.security.protocol.map"
        protocols = {}
        for entry in _LIST_SEPARATOR.split(self.str(name)):
            listener, colon, protocol = entry.rpartition(":")
            if not colon or protocol.strip().upper() not in _PROTOCOLS:
                raise ConfigError(
                    f"{name}={entry}: expected LISTENER:PROTOCOL with one of "
                    + ", ".join(_PROTOCOLS)
                )
            listener = listener.strip().upper()
            if listener in protocols:
                raise ConfigError(f"{name}: listener {listener} appears twice")
            protocols[listener] = protocol.strip().upper()
        return protocols

    def _listeners(
        self, setting: _Str, protocols: Mapping[_Str, _Str], controller_names: _List[_Str]
    ) -> _List[Listener]:
        found: dict[_Str, Listener] = {}
        for entry in self.list(setting):
            match = _LISTENER.fullmatch(entry)
            if match is None:
                raise ConfigError(
                    f"{setting}={entry}: expected NAME://host:port, with an IPv6 host in brackets"
                )
            name = match[1].upper()
            port = int(match[4])
            if not 0 <= port <= 65535:
                raise ConfigError(f"{setting}={entry}: expected a port from 0 to 65535")
            if name in found:
                raise ConfigError(f"{setting}: listener {name} appears twice")
            protocol = protocols.get(name)
            if protocol is None and name in controller_names:
                protocol = "PLAINTEXT"
            if protocol is None:
                raise ConfigError(
                    f"{setting}={entry}: listener.security.protocol.map has no protocol for {name}"
                )
            if protocol != "PLAINTEXT" and name not in controller_names:
                raise ConfigError(
                    f"{setting}={entry}: protocol {protocol} is not served yet, only PLAINTEXT"
                )
            found[name] = Listener(name, match[2] or match[3] or "", port, protocol)
        return _List(found.values())

    def _advertised(
        self, protocols: Mapping[_Str, _Str], controller_names: _List[_Str]
    ) -> tuple[Listener, ...]:
        if "advertised.listeners" not in self._given:
            # Every interface is no address that a client could dial.
            return tuple(
                listener._replace(host="") if listener.host in ("0.0.0.0", "::") else listener
                for listener in self.listeners
            )
        advertised = []
        names = [listener.name for listener in self.listeners]
        for listener in self._listeners("advertised.listeners", protocols, controller_names):
            if listener.name in controller_names:
                continue
            if listener.host in ("0.0.0.0", "::"):
                raise ConfigError(
                    f"advertised.listeners={listener}: expected an address that clients can reach"
                )
            if listener.name not in names:
                raise ConfigError(
                    f"advertised.listeners={listener}: listeners has none of that name, "
                    f"only {', '.join(names)}"
                )
            advertised.append(listener)
        advertised_names = [listener.name for listener in advertised]
        for name in names:
            if name not in advertised_names:
                self.warnings.append(
                    f"listener {name} is opened but not in advertised.listeners: "
                    "clients that connect there are told of no broker"
                )
        return tuple(advertised)

    def _inter_broker_listener(self) -> _Str:
        name = self.optional_str("inter.broker.listener.name")
        advertised = [listener.name for listener in self.advertised_listeners]
        if name is None:
            protocol = self.str("security.inter.broker.protocol")
            return protocol if protocol in advertised or not advertised else advertised[0]
        if "security.inter.broker.protocol" in self._given:
            raise ConfigError(
                "inter.broker.listener.name: security.inter.broker.protocol is given too; "
                "give one of them"
            )
        if name.upper() not in advertised:
            raise ConfigError(
                f"inter.broker.listener.name={name}: expected one of advertised.listeners: "
                + ", ".join(advertised)
            )
        return name.upper()

    def _check_limits(self) -> None:
        """Refuse what Kafka refuses of values that are fine alone; warn of the rest."""
        if self.int("log.retention.ms") == 0:
            raise ConfigError("log.retention.ms=0: expected -1 for no limit, or at least 1")
        if self.int("log.roll.ms") < 1:
            raise ConfigError(f"log.roll.ms={self.int('log.roll.ms')}: expected at least 1")
        if self.int("log.roll.jitter.ms") < 0:
            raise ConfigError("log.roll.jitter.ms: expected at least 0")
        queued = self.int("queued.max.request.bytes")
        if queued != -1 and queued < self.int("socket.request.max.bytes"):
            raise ConfigError(
                f"queued.max.request.bytes={queued}: expected -1 or at least "
                f"socket.request.max.bytes={self.int('socket.request.max.bytes')}"
            )
        if self.int("max.connections.per.ip") == 0 and not self.str(
            "max.connections.per.ip.overrides"
        ):
            raise ConfigError(
                "max.connections.per.ip=0: expected at least 1, "
                "or max.connections.per.ip.overrides for those who may connect"
            )
        self.connection_limits_by_host()
        if self._given or self._dynamic:
            self.warnings += contradictions(topic_config(self, {}), "broker")
            self._check_sizes()

    def _check_sizes(self) -> None:
        largest = self.int("message.max.bytes")
        for name in ("socket.request.max.bytes", "fetch.max.bytes", "replica.fetch.max.bytes"):
            given = name in self._given or "message.max.bytes" in self._given
            if given and self.int(name) < largest:
                self.warnings.append(
                    f"{name}={self.int(name)} is below message.max.bytes={largest}: "
                    "a record batch of the allowed size may not get through"
                )
        retention_ms = self.int("log.retention.ms")
        check_ms = self.int("log.retention.check.interval.ms")
        if 0 < retention_ms < check_ms:
            self.warnings.append(
                f"log.retention.check.interval.ms={check_ms} is above "
                f"log.retention.ms={retention_ms}: records stay until the next check"
            )
        if self.int("min.insync.replicas") > self.int("default.replication.factor") > 0:
            self.notes.append(
                f"min.insync.replicas={self.int('min.insync.replicas')} is above "
                f"default.replication.factor={self.int('default.replication.factor')}: "
                "the smaller of it and a partition's replica count counts"
            )

    def connection_limits_by_host(self) -> dict[_Str, _Int]:
        """``max.connections.per.ip.overrides`` as host or address -> limit."""
        name = "max.connections.per.ip.overrides"
        limits = {}
        for entry in filter(None, _LIST_SEPARATOR.split(self.str(name))):
            host, _, limit = entry.rpartition(":")
            if not host or not limit.strip().isdecimal():
                raise ConfigError(f"{name}={entry}: expected host:limit, separated by commas")
            limits[host.strip().strip("[]")] = _Int(limit)
        return limits


def _refuse_shared_ports(listeners: Iterable[Listener]) -> None:
    """One port per listener, except that IPv4 and IPv6 may share one."""
    by_port: dict[int, Listener] = {}
    for listener in listeners:
        other = by_port.setdefault(listener.port, listener)
        if other is listener or listener.port == 0:
            continue
        families = {":" in other.host, ":" in listener.host}
        if len(families) == 1 or not other.host or not listener.host:
            raise ConfigError(f"listeners: {other} and {listener} have the same port")


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    from headrace.model.settings import old

    twin = TOPIC_TWINS.get(name)
    if twin is not None:
        return f" but a topic's; the broker's is {twin[0][0]}"
    client = old.CLIENT.get(name)
    if client is not None:
        whose, _, successor, _ = client
        today = f", today {successor}" if successor and successor != name else ""
        return f" but a {whose}'s{today}"
    near = get_close_matches(name, [*BROKER, *OURS, *old.BROKER], n=1, cutoff=0.75)
    return f" (did you mean {near[0]}?)" if near else ""


def _dynamic_row(name: str) -> Row:
    """The facts of a setting that may change while running; refuse any other by name."""
    row = row_of(name)
    if row is None and name.startswith("listener.name."):
        row = BROKER.get(name.removeprefix("listener.name.").partition(".")[2])
    if row is None:
        raise ConfigError(f"{name} is not a broker setting{_suggestion(name)}")
    if not row[3]:
        raise ConfigError(f"{name} is read-only while the broker runs: set it in the file")
    return row


def topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """One topic's settings: its own values over the broker's.

    Names that only older releases knew are taken along (``settings.old`` says as
    what), because a folder or a cluster of those years may hold them;
    ``check_topic_overrides`` is for what a client asks for now.
    """
    defaults = broker._topic_defaults
    if defaults is None:
        defaults = broker._topic_defaults = _topic_defaults(broker)
    if not overrides:
        return defaults
    changes: dict[str, object] = {}
    for name, text in overrides.items():
        row = TOPIC.get(name)
        if row is None:
            changes |= _old_topic_changes(name, text)
            continue
        changes[name.replace(".", "_")] = _for_topic(name, parse_value(name, text, row))
    small = changes.pop("internal_segment_bytes", None)
    if small is not None:
        changes["segment_bytes"] = small
    config: TopicConfig = defaults._replace(**changes)  # type: ignore[arg-type]
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms}: expected at most "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    return config


def check_topic_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The same for what a client asks for: a name that 4.3.1 does not know is refused."""
    for name in overrides:
        if name not in TOPIC:
            from difflib import get_close_matches

            near = get_close_matches(name, TOPIC, n=1, cutoff=0.75)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"{name} is not a topic setting{hint}")
    return topic_config(broker, overrides)


def _topic_defaults(broker: BrokerConfig) -> TopicConfig:
    values: dict[str, object] = {}
    for name, row in TOPIC.items():
        if name == "internal.segment.bytes":
            continue
        twins = TOPIC_TWINS.get(name)
        value: Value
        if twins is not None:
            value = broker._value(twins[0][0])
        else:
            assert row[1] is not None, f"{name} has no default"
            value = parse_value(name, row[1], row)
        values[name.replace(".", "_")] = _for_topic(name, value)
    return TopicConfig(**values)  # type: ignore[arg-type]


def _for_topic(name: str, value: Value) -> object:
    if isinstance(value, list):
        return frozenset(value) if name == "cleanup.policy" else tuple(value)
    return value


def _old_topic_changes(name: str, text: str) -> dict[str, object]:
    from headrace.model.settings import old

    row = old.TOPIC.get(name)
    if row is None:
        raise ConfigError(f"{name} is not a topic setting")
    kind, default, successors, _ = row
    value = parse_value(name, text, (kind, default, None, "", ""))
    return {successor.replace(".", "_"): value for successor, _ in successors}


def contradictions(config: TopicConfig, whose: str) -> list[str]:
    """Limits that are fine alone and defeat each other together."""
    found = []
    if config.segment_bytes < config.max_message_bytes:
        found.append(
            f"{whose}: segments of {config.segment_bytes} bytes are smaller than the largest "
            f"record batch of {config.max_message_bytes}: such a batch is refused"
        )
    if 0 <= config.retention_bytes < config.segment_bytes:
        found.append(
            f"{whose}: retention of {config.retention_bytes} bytes is below one segment of "
            f"{config.segment_bytes}: only whole segments are deleted"
        )
    slots = config.segment_index_bytes // 8
    if slots * max(config.index_interval_bytes, 1) < min(config.segment_bytes, 1 << 31):
        found.append(
            f"{whose}: an index of {config.segment_index_bytes} bytes with an entry every "
            f"{config.index_interval_bytes} is full before a segment of {config.segment_bytes}: "
            "segments will be rolled early"
        )
    if 0 < config.retention_ms < config.segment_ms and config.retention_bytes < 0:
        found.append(
            f"{whose}: retention of {config.retention_ms} ms is below segment.ms "
            f"{config.segment_ms}: the segment being written is rolled and deleted by age "
            "only once all its records are that old"
        )
    return found
