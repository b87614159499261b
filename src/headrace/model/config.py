"""The configuration of a broker: Kafka's settings over their defaults, with dynamic ones on top.

A ``BrokerConfig`` is the effective configuration of one node. A ``TopicConfig`` is the effective
configuration of one topic: its own values over those of the broker. Other packages import the
classes and functions in ``__all__`` from here.
"""

from collections.abc import Mapping
from copy import copy

from headrace.model.errors import ConfigError
from headrace.model.ids import BrokerId
from headrace.model.settings.given import GivenSettings, hint_for
from headrace.model.settings.group import check_group_overrides
from headrace.model.settings.headrace import default_of, row_of
from headrace.model.settings.kafka import Row
from headrace.model.settings.listeners import (
    Listener,
    advertised_by_default,
    check_advertised,
    check_ports,
    inter_broker_listener,
    parse_listeners,
    parse_protocol_map,
)
from headrace.model.settings.properties import parse_properties
from headrace.model.settings.topic import (
    TopicConfig,
    check_topic_overrides,
    contradictions,
    inherited_topic_config,
    topic_config,
)
from headrace.model.settings.values import Value, parse_value, split_list, value_to_text

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

_HOUR_MS = 3_600_000
_NO_LIMIT = 2**31 - 1

# The accessors of BrokerConfig hide the builtins of the same names.
_Int = int
_Float = float
_Str = str
_Bool = bool
_List = list


class BrokerConfig:
    """The settings of one node. Made by ``parse``; never changed afterwards.

    ``listeners`` are the addresses to open; ``advertised_listeners`` are the addresses for clients,
    by the same names. The broker replaces an empty advertised host with the name of this machine,
    and the advertised port 0 with the port that the system chose.
    """

    __slots__ = (
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

    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    inter_broker_listener: _Str
    node_id: BrokerId
    node_id_is_given: _Bool

    def __init__(self, given: GivenSettings) -> None:
        self.warnings: _List[_Str] = list(given.warnings)
        self.notes: _List[_Str] = list(given.notes)
        self._given = given
        self._dynamic: Mapping[_Str, _Str] = {}
        self._parsed: dict[_Str, Value] = dict(given.values)
        self._topic_defaults: TopicConfig | None = None
        self._refuse_authorizer()
        self._settle_node_id()
        self._refuse_other_nodes()
        self._settle_listeners()
        self._check_limits()

    @classmethod
    def parse(cls, values: Mapping[_Str, _Str], *, strict: _Bool = False) -> "BrokerConfig":
        """The configuration that a file gives. Refuse an unknown name if ``strict``."""
        return cls(GivenSettings(values, strict=strict))

    def with_dynamic(self, overrides: Mapping[_Str, _Str]) -> "BrokerConfig":
        """The same file with these dynamic settings on top; earlier ones no longer count."""
        config = copy(self)
        config.warnings = []
        config.notes = []
        config._dynamic = dict(overrides)
        config._parsed = {"node.id": self.node_id, "broker.id": self.node_id}
        config._topic_defaults = None
        for name, text in overrides.items():
            config._parsed[name] = parse_value(name, text, _dynamic_row(name))
        config._check_limits()
        return config

    # --- reading

    def int(self, name: _Str) -> _Int:
        value = self.value(name)
        assert isinstance(value, _Int), f"{name} is no integer: {value!r}"
        return value

    def float(self, name: _Str) -> _Float:
        value = self.value(name)
        assert isinstance(value, _Float), f"{name} is no number: {value!r}"
        return value

    def bool(self, name: _Str) -> _Bool:
        value = self.value(name)
        assert isinstance(value, _Bool), f"{name} is no boolean: {value!r}"
        return value

    def str(self, name: _Str) -> _Str:
        value = self.value(name)
        assert isinstance(value, _Str), f"{name} is no text: {value!r}"
        return value

    def list(self, name: _Str) -> _List[_Str]:
        value = self.value(name)
        assert isinstance(value, _List), f"{name} is no list: {value!r}"
        return value

    def optional_int(self, name: _Str) -> _Int | None:
        return None if self.value(name) is None else self.int(name)

    def optional_str(self, name: _Str) -> _Str | None:
        return None if self.value(name) is None else self.str(name)

    def value(self, name: _Str) -> Value:
        """The effective value. Raises KeyError if there is no such setting."""
        try:
            return self._parsed[name]
        except KeyError:
            value = self._parsed[name] = self._resolve(name)
            return value

    def text(self, name: _Str) -> _Str | None:
        """The effective value, as Kafka prints it."""
        return value_to_text(self.value(name))

    def given_text(self, name: _Str) -> _Str | None:
        """The text in the file, also from an old name for this setting; None if not given."""
        return self._given.texts.get(name)

    def default_text(self, name: _Str) -> _Str | None:
        """The default on this node."""
        row = row_of(name)
        assert row is not None, f"{name} is no setting"
        return default_of(name, row, in_cluster=self.is_on_zookeeper)

    @property
    def is_on_zookeeper(self) -> _Bool:
        """Whether this broker joins a cluster, with its state in ZooKeeper."""
        return _Bool(self._given.texts.get("zookeeper.connect"))

    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic without its own; the same object every time."""
        if self._topic_defaults is None:
            self._topic_defaults = inherited_topic_config(self.value)
        return self._topic_defaults

    def limit_of_listener(self, listener: _Str, name: _Str) -> _Int:
        """The value of ``listener.name.LISTENER.name``."""
        return self._given.listener_limits.get((listener, name), _NO_LIMIT)

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

    def _resolve(self, name: _Str) -> Value:
        row = row_of(name)
        if row is None:
            raise KeyError(f"{name} is not a broker setting")
        text = self._dynamic.get(name)
        if text is None:
            text = self._given.texts.get(name)
        if text is None:
            text = default_of(name, row, in_cluster=self.is_on_zookeeper)
        if text is not None:
            return parse_value(name, text, row)
        # A finer unit that is not set takes the value of the coarser one, as in Kafka.
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

    # --- checking

    def _refuse_authorizer(self) -> None:
        """A node without the requested protection must not start."""
        authorizer = self.str("authorizer.class.name")
        if authorizer:
            raise ConfigError(
                f"authorizer.class.name={authorizer}: authorization is not supported. Remove the "
                "setting to start; every client then has full access"
            )

    def _settle_node_id(self) -> None:
        node_id = self.int("node.id") if "node.id" in self._given.texts else None
        broker_id = self.int("broker.id")
        if broker_id < 0 and broker_id != -1:
            raise ConfigError(f"broker.id={broker_id}: expected an integer of at least 0")
        if node_id is not None and broker_id >= 0 and node_id != broker_id:
            raise ConfigError(
                f"broker.id={broker_id} differs from node.id={node_id}; "
                "remove one of them, or give both the same value"
            )
        self.node_id_is_given = node_id is not None or broker_id >= 0
        if node_id is None:
            node_id = broker_id if broker_id >= 0 else self.int("node.id")
        self.node_id = BrokerId(node_id)
        self._parsed["node.id"] = self._parsed["broker.id"] = node_id

    def _refuse_other_nodes(self) -> None:
        """A file for Kafka's combined mode works unchanged; a file with other nodes does not."""
        roles = self.list("process.roles")
        if roles and "broker" not in roles:
            raise ConfigError(
                "process.roles=controller: expected broker or broker,controller; "
                "controllers without a broker are not supported"
            )
        for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
            addresses = self.list(name)
            if len(addresses) > 1:
                raise ConfigError(
                    f"{name}={','.join(addresses)}: expected only this node; KRaft clusters are "
                    "not supported. For a cluster, set zookeeper.connect instead"
                )
            if addresses and roles == ["broker"]:
                raise ConfigError(
                    f"{name}={addresses[0]}: a controller on another node is not supported; "
                    "set process.roles=broker,controller"
                )

    def _settle_listeners(self) -> None:
        protocols = parse_protocol_map(self.str("listener.security.protocol.map"))
        controller_names = [name.upper() for name in self.list("controller.listener.names")]

        def read(setting: _Str) -> _List[Listener]:
            return parse_listeners(setting, self.list(setting), protocols, controller_names)

        opened = []
        for listener in read("listeners"):
            if listener.name in controller_names:
                self.notes.append(
                    f"listener {listener} is not opened: the controller runs in this process"
                )
            else:
                opened.append(listener)
        if not opened:
            raise ConfigError(
                f"listeners={','.join(self.list('listeners'))}: "
                "expected at least one that is not in controller.listener.names"
            )
        check_ports(opened)
        self.listeners = tuple(opened)
        if "advertised.listeners" in self._given.texts:
            named = read("advertised.listeners")
            advertised = tuple(each for each in named if each.name not in controller_names)
            check_advertised(advertised, opened)
            self.advertised_listeners = advertised
        else:
            self.advertised_listeners = advertised_by_default(opened)
        self.inter_broker_listener = inter_broker_listener(
            self.optional_str("inter.broker.listener.name"),
            self.str("security.inter.broker.protocol"),
            self.advertised_listeners,
            protocol_is_given="security.inter.broker.protocol" in self._given.texts,
        )
        self._warn_of_listeners()

    def _warn_of_listeners(self) -> None:
        names = {listener.name for listener in self.listeners}
        self.warnings += [
            f"listener.name.{owner.lower()}.{name} has no effect: there is no listener {owner}"
            for owner, name in self._given.listener_limits
            if owner not in names
        ]
        advertised = {listener.name for listener in self.advertised_listeners}
        self.warnings += [
            f"listener {listener.name} is opened but not in advertised.listeners: "
            "clients that connect to it do not see any broker"
            for listener in self.listeners
            if listener.name not in advertised
        ]

    def _check_limits(self) -> None:
        """Refuse the combinations that Kafka refuses; warn of other conflicts."""
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
                "max.connections.per.ip=0: expected at least 1, or "
                "max.connections.per.ip.overrides with the addresses that may connect"
            )
        self.connection_limits_by_host()
        if self._given.texts or self._dynamic:
            self.warnings += contradictions(self.topic_defaults())
            self._warn_of_sizes()

    def _warn_of_sizes(self) -> None:
        largest = self.int("message.max.bytes")
        for name in ("socket.request.max.bytes", "fetch.max.bytes", "replica.fetch.max.bytes"):
            given = name in self._given.texts or "message.max.bytes" in self._given.texts
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
                "a partition never needs more in-sync replicas than it has replicas"
            )


# Keys and certificates belong to one listener; Kafka also refuses them for a whole broker.
_STORES = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")


def _dynamic_row(name: str) -> Row:
    """The facts of a setting that can change while the broker runs; refuse any other by name."""
    row = row_of(name)
    if row is None:
        raise ConfigError(f"{name} is not a broker setting{hint_for(name)}")
    if not row.change:
        raise ConfigError(
            f"{name} cannot be changed at run time; set it in server.properties or with -X and "
            "restart"
        )
    return row


def check_dynamic(config: BrokerConfig, overrides: Mapping[str, str], *, for_all: bool) -> None:
    """Refuse, by name, what a client cannot set on a running broker, or on all of them."""
    for name in overrides:
        row = _dynamic_row(name)
        if for_all and row.change == "b":
            raise ConfigError(f"{name} belongs to one broker: set it with a broker's id")
        if name.startswith(_STORES):
            from headrace.model.settings.descriptions import REASONS

            raise ConfigError(f"{name} cannot be set: {REASONS[row.no_effect]}")
    config.with_dynamic(overrides)


def without_effect(overrides: Mapping[str, str], table: Mapping[str, Row]) -> list[str]:
    """A line for each setting that has no effect on this node, with the reason."""
    lines = []
    for name in overrides:
        row = table.get(name)
        if row is not None and row.no_effect:
            from headrace.model.settings.descriptions import REASONS

            lines.append(f"{name} has no effect: {REASONS[row.no_effect]}")
    return lines
