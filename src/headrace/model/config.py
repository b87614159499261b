"""Settings by Kafka's names: reading a properties file, checking, defaults, a topic's view.

A ``BrokerConfig`` is what a node runs with: given values over Kafka 4.3.1's
defaults, with the dynamic ones on top. A ``TopicConfig`` is one topic's view of
it: the topic's own value wins over the broker's twin, and without one the
broker's comes back.

Nothing that was given is dropped in silence. A bad value is refused by name, an
unknown name is a warning (or refused, when strict), an old name is taken as its
successor, and what has no effect here is said to have none.
"""

from collections.abc import Mapping

from headrace.model.errors import ConfigError
from headrace.model.ids import BrokerId
from headrace.model.settings.kafka import BROKER, DYNAMIC_ONLY, GROUP, TOPIC, TOPIC_TWINS, Row
from headrace.model.settings.listeners import (
    EVERY_INTERFACE,
    Listener,
    parse_listeners,
    parse_protocol_map,
    refuse_shared_ports,
)
from headrace.model.settings.properties import parse_properties
from headrace.model.settings.topic import TopicConfig, contradictions
from headrace.model.settings.values import Value, parse_value, split_list, value_to_text
from headrace.model.spelling import did_you_mean

__all__ = [
    "BrokerConfig",
    "Listener",
    "TopicConfig",
    "check_dynamic",
    "check_group_overrides",
    "check_topic_overrides",
    "contradictions",
    "parse_properties",
    "topic_config",
    "without_effect",
]

OURS: dict[str, Row] = {
    "headrace.validate.records": ("bool", "false", None, "", ""),
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

# Reasons worth a note, not a warning: the setting tunes a mechanism that this
# design does without, or one that a client is told is missing when it asks.
_QUIET_REASONS = frozenset(
    [
        "loop",
        "pool",
        "recovery",
        "cleaner",
        "cleaner_buffer",
        "parked",
        "quorum",
        "generation",
        "chores",
        "checkpoints",
        "queue",
        "one_coordinator",
        "patterns",
        "at_once",
        "share",
        "streams",
        "on_time",
        "loads",
    ]
)

_HOUR_MS = 3_600_000
_PER_LISTENER = ("max.connections", "max.connection.creation.rate")
_NO_LIMIT = 2**31 - 1


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
        "_of_listeners",
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
    _of_listeners: dict[tuple[_Str, _Str], _Int]
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
        config._of_listeners = {}
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
        config._refuse_false_safety()
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
        config._of_listeners = self._of_listeners
        config._dynamic = dict(overrides)
        config._parsed = {"node.id": self.node_id, "broker.id": self.node_id}
        config._topic_defaults = None
        for name, text in overrides.items():
            config._parsed[name] = parse_value(name, text, _dynamic_row(name))
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

    def text(self, name: _Str) -> _Str | None:
        """The value that counts, as Kafka prints it."""
        return value_to_text(self._value(name))

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
        from headrace.model.settings.descriptions import REASONS

        line = f"{name} has no effect: {REASONS[reason_key]}"
        if changed and reason_key not in _QUIET_REASONS:
            self.warnings.append(line)
        else:
            self.notes.append(line)

    def _take_old(self, values: Mapping[_Str, _Str], strict: _Bool) -> None:
        from headrace.model.settings import legacy_names

        for name, text in values.items():
            row = legacy_names.BROKER.get(name)
            if name == "zookeeper.connect" and text:
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
                value = parse_value(name, text, row)
                if inner in _PER_LISTENER and isinstance(value, _Int):
                    whose = name.removeprefix("listener.name.").partition(".")[0].upper()
                    self._of_listeners[whose, inner] = value
                    return
                self._no_effect(name, row[4] or "listener", changed=True)
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

    def _refuse_false_safety(self) -> None:
        """Who asks for protection must not get an open node with a line in its log."""
        authorizer = self.str("authorizer.class.name")
        if authorizer:
            raise ConfigError(
                f"authorizer.class.name={authorizer}: authorization is not served yet; "
                "without the setting everyone may do everything"
            )

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
        protocols = parse_protocol_map(self.str("listener.security.protocol.map"))
        controller_names = [name.upper() for name in self.list("controller.listener.names")]
        opened = []
        for listener in parse_listeners(
            "listeners", self.list("listeners"), protocols, controller_names
        ):
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
        refuse_shared_ports(opened)
        self.listeners = tuple(opened)
        names = {listener.name for listener in opened}
        self.warnings += [
            f"listener.name.{whose.lower()}.{inner} has no effect: there is no listener {whose}"
            for whose, inner in self._of_listeners
            if whose not in names
        ]
        self.advertised_listeners = self._advertised(protocols, controller_names)
        self.inter_broker_listener = self._inter_broker_listener()

    def _advertised(
        self, protocols: Mapping[_Str, _Str], controller_names: _List[_Str]
    ) -> tuple[Listener, ...]:
        if "advertised.listeners" not in self._given:
            # Every interface is no address that a client could dial.
            return tuple(
                listener._replace(host="") if listener.host in EVERY_INTERFACE else listener
                for listener in self.listeners
            )
        advertised = []
        names = [listener.name for listener in self.listeners]
        for listener in parse_listeners(
            "advertised.listeners", self.list("advertised.listeners"), protocols, controller_names
        ):
            if listener.name in controller_names:
                continue
            if listener.host in EVERY_INTERFACE:
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
            self.warnings += contradictions(topic_config(self, {}))
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

    def limit_of_listener(self, listener: _Str, name: _Str) -> _Int:
        """``listener.name.LISTENER.name``; without it only the limit for all counts."""
        return self._of_listeners.get((listener, name), _NO_LIMIT)

    def connection_limits_by_host(self) -> dict[_Str, _Int]:
        """``max.connections.per.ip.overrides`` as host or address -> limit."""
        name = "max.connections.per.ip.overrides"
        limits = {}
        for entry in split_list(self.str(name)):
            host, _, limit = entry.rpartition(":")
            if not host or not limit.strip().isdecimal():
                raise ConfigError(f"{name}={entry}: expected host:limit, separated by commas")
            limits[host.strip().strip("[]")] = _Int(limit)
        return limits


def _suggestion(name: str) -> str:
    from headrace.model.settings import legacy_names

    twin = TOPIC_TWINS.get(name)
    if twin is not None:
        return f" but a topic's; the broker's is {twin[0][0]}"
    client = legacy_names.CLIENT.get(name)
    if client is not None:
        whose, _, successor, _ = client
        today = f", today {successor}" if successor and successor != name else ""
        return f" but a {whose}'s{today}"
    return did_you_mean(name, [*BROKER, *OURS, *legacy_names.BROKER])


# Keys and certificates belong to one listener: Kafka refuses them for a whole broker too. Other
# settings of listeners that come later do nothing yet, here as in the file.
_STORES = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")


def _dynamic_row(name: str) -> Row:
    """The facts of a setting that may change while running; refuse any other by name."""
    row = row_of(name)
    if row is None:
        raise ConfigError(f"{name} is not a broker setting{_suggestion(name)}")
    if not row[3]:
        raise ConfigError(f"{name} is read-only while the broker runs: set it in the file")
    return row


def check_dynamic(config: BrokerConfig, overrides: Mapping[str, str], *, for_all: bool) -> None:
    """Refuse by name what a client may not set on one running broker, or on all of them."""
    for name in overrides:
        row = _dynamic_row(name)
        if for_all and row[3] == "b":
            raise ConfigError(f"{name} belongs to one broker: set it with a broker's id")
        if name.startswith(_STORES):
            from headrace.model.settings.descriptions import REASONS

            raise ConfigError(f"{name} cannot be set: {REASONS[row[4]]}")
    config.with_dynamic(overrides)


def without_effect(overrides: Mapping[str, str], table: Mapping[str, Row]) -> list[str]:
    """A line for each of these settings that this node does not serve, saying why."""
    lines = []
    for name in overrides:
        row = table.get(name)
        if row is not None and row[4]:
            from headrace.model.settings.descriptions import REASONS

            lines.append(f"{name} has no effect: {REASONS[row[4]]}")
    return lines


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
            raise ConfigError(f"{name} is not a topic setting{did_you_mean(name, TOPIC)}")
    config = topic_config(broker, overrides)
    if config.remote_storage_enable:
        raise ConfigError("remote.storage.enable=true: logs lie on local disks only")
    return config


def check_group_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Refuse by name what a group may not have: a value must keep within the broker's limits."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        row = GROUP.get(name)
        if row is None:
            raise ConfigError(f"{name} is not a group setting{did_you_mean(name, GROUP)}")
        value = values[name] = parse_value(name, text, row)
        family, _, rest = name.partition(".")
        rest = rest.removeprefix("num.") if name == "streams.num.standby.replicas" else rest
        for bound in ("min", "max"):
            limit_name = f"group.{family}.{bound}.{rest}"
            if limit_name not in BROKER or not isinstance(value, int):
                continue
            limit = broker.int(limit_name)
            if value < limit if bound == "min" else value > limit:
                side = "at least" if bound == "min" else "at most"
                raise ConfigError(f"{name}={text}: expected {side} {limit_name}={limit}")
    for family in ("consumer", "share", "streams"):
        session, heartbeat = (
            values.get(f"{family}.{rest}", broker._value(f"group.{family}.{rest}"))
            for rest in ("session.timeout.ms", "heartbeat.interval.ms")
        )
        assert isinstance(session, int) and isinstance(heartbeat, int)
        if session <= heartbeat:
            raise ConfigError(
                f"{family}.session.timeout.ms={session}: expected more than "
                f"{family}.heartbeat.interval.ms={heartbeat}"
            )


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
    from headrace.model.settings import legacy_names

    row = legacy_names.TOPIC.get(name)
    if row is None:
        raise ConfigError(f"{name} is not a topic setting")
    kind, default, successors, _ = row
    value = parse_value(name, text, (kind, default, None, "", ""))
    return {successor.replace(".", "_"): value for successor, _ in successors}
