"""The settings that a file gives: values checked, old names replaced, unknown names reported.

Nothing is dropped in silence. A bad value is refused by name. An unknown name produces a warning
(in strict mode: is refused). An old name counts as its successor. A setting without effect
produces a warning or a note that says why.
"""

from collections.abc import Mapping

from headrace.model.errors import ConfigError
from headrace.model.settings.headrace import ADDED, NODE_DEFAULTS, default_of
from headrace.model.settings.kafka import BROKER, TOPIC_SYNONYMS, Row
from headrace.model.settings.values import Value, parse_value, split_list, value_to_text
from headrace.model.spelling import did_you_mean

_PER_LISTENER = ("max.connections", "max.connection.creation.rate")
_LISTENER_PREFIX = "listener.name."
_TIERED_STORAGE_PREFIXES = ("rsm.config.", "rlmm.config.")
_SECURITY_PREFIXES = ("sasl.", "ssl.", "connections.max.reauth")


class GivenSettings:
    """The settings of one file, all under the names that Kafka 4.3.1 uses."""

    __slots__ = ("listener_limits", "notes", "texts", "values", "warnings")

    def __init__(self, file: Mapping[str, str], *, strict: bool = False) -> None:
        self.texts: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.listener_limits: dict[tuple[str, str], int] = {}  # by listener and setting
        self.warnings: list[str] = []
        self.notes: list[str] = []
        others: dict[str, str] = {}
        for name, text in file.items():
            name, text = name.strip(), text.strip()
            row = BROKER.get(name) or ADDED.get(name)
            if row is not None:
                self._take(name, text, row)
            else:
                others[name] = text
        if others:
            self._take_others(others, strict)

    def _take(self, name: str, text: str, row: Row) -> None:
        self.values[name] = parse_value(name, text, row)
        self.texts[name] = text
        if row.no_effect:
            self._no_effect(name, row.no_effect, changed=text != default_of(name, row))

    def _no_effect(self, name: str, reason_key: str, *, changed: bool) -> None:
        from headrace.model.settings.descriptions import QUIET_REASONS, REASONS

        line = f"{name} has no effect: {REASONS[reason_key]}"
        if changed and reason_key not in QUIET_REASONS:
            self.warnings.append(line)
        else:
            self.notes.append(line)

    def _take_others(self, others: Mapping[str, str], strict: bool) -> None:
        """Names that Kafka 4.3.1 does not know."""
        from headrace.model.settings import legacy_names

        for name, text in others.items():
            row = legacy_names.BROKER.get(name)
            if name == "control.plane.listener.name" and text:
                raise ConfigError(
                    f"{name}={text}: a listener for the controller alone is not supported; remove "
                    "the setting, so that it uses the listener of the other brokers"
                )
            if row is None:
                self._take_unlisted(name, text, strict)
                continue
            kind, default, successors, reason_key = row
            value = parse_value(name, text, Row(kind, default, None, "", ""))
            if not successors:
                self._no_effect(name, reason_key, changed=text != default)
            elif successors[0][0] not in ("listeners", "advertised.listeners"):
                for successor, factor in successors:
                    self._take_successor(name, value, successor, factor)
        self._take_old_addresses(others)

    def _take_successor(self, name: str, value: Value, successor: str, factor: int) -> None:
        if successor in self.texts:
            self.warnings.append(_precedence_warning(name, successor))
            return
        text = value_to_text(value * factor if isinstance(value, int) else value)
        self._take(successor, text or "", BROKER[successor])
        self.warnings.append(f"{name} is an old name: using {successor}={text}")

    def _take_old_addresses(self, others: Mapping[str, str]) -> None:
        """Make listeners of ``host.name``, ``port`` and their advertised counterparts."""
        for target, host_name, port_name in (
            ("listeners", "host.name", "port"),
            ("advertised.listeners", "advertised.host.name", "advertised.port"),
        ):
            names = [name for name in (host_name, port_name) if name in others]
            if not names:
                continue
            if target in self.texts:
                self.warnings += [_precedence_warning(name, target) for name in names]
                continue
            listeners = split_list(self.texts.get("listeners", NODE_DEFAULTS["listeners"]))
            address, _, port = listeners[0].rpartition(":")
            host = others.get(host_name, address.partition("://")[2])
            port = others.get(port_name, port)
            host = f"[{host}]" if ":" in host and not host.startswith("[") else host
            text = f"PLAINTEXT://{host}:{port}"
            self._take(target, text, BROKER[target])
            self.warnings += [f"{name} is an old name: using {target}={text}" for name in names]

    def _take_unlisted(self, name: str, text: str, strict: bool) -> None:
        """A name in no table: a setting of one listener or of a plug-in, or a mistake."""
        if name.startswith(_LISTENER_PREFIX) and self._take_of_listener(name, text):
            return
        if name.startswith(_TIERED_STORAGE_PREFIXES):
            self._no_effect(name, "tiered", changed=True)
            return
        problem = f"{name} is not a broker setting{hint_for(name)}"
        if strict:
            raise ConfigError(problem)
        self.warnings.append(f"{problem}; it has no effect")

    def _take_of_listener(self, name: str, text: str) -> bool:
        """``listener.name.NAME.setting``; False if that is not a setting."""
        listener, _, setting = name.removeprefix(_LISTENER_PREFIX).partition(".")
        row = BROKER.get(setting)
        if row is not None:
            value = parse_value(name, text, row)
            if setting in _PER_LISTENER and isinstance(value, int):
                self.listener_limits[listener.upper(), setting] = value
            else:
                self._no_effect(name, row.no_effect or "listener", changed=True)
            return True
        # Below a SASL mechanism: listener.name.NAME.MECHANISM.sasl.…
        if setting.partition(".")[2].startswith(_SECURITY_PREFIXES):
            self._no_effect(name, "sasl", changed=True)
            return True
        return False


def hint_for(name: str) -> str:
    """What an unknown broker setting may have meant, as the end of a message."""
    from headrace.model.settings import legacy_names

    synonyms = TOPIC_SYNONYMS.get(name)
    if synonyms is not None:
        return f" but a topic setting; the broker setting is {synonyms[0]}"
    client = legacy_names.CLIENT.get(name)
    if client is not None:
        whose, _, successor, _ = client
        today = f", now named {successor}" if successor and successor != name else ""
        return f" but a {whose} setting{today}"
    return did_you_mean(name, [*BROKER, *ADDED, *legacy_names.BROKER])


def _precedence_warning(name: str, successor: str) -> str:
    return f"{name} has no effect: {successor} is set too and takes precedence"
