"""Settings of one group: within the limits that the broker sets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.model.errors import ConfigError
from headrace.model.settings.kafka import BROKER, GROUP
from headrace.model.settings.values import Value, parse_value
from headrace.model.spelling import did_you_mean

if TYPE_CHECKING:
    from headrace.model.config import BrokerConfig


def check_group_overrides(broker: "BrokerConfig", overrides: Mapping[str, str]) -> None:
    """Refuse, by name, the settings that a group cannot have."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        row = GROUP.get(name)
        if row is None:
            raise ConfigError(f"{name} is not a group setting{did_you_mean(name, GROUP)}")
        value = values[name] = parse_value(name, text, row)
        if isinstance(value, int):
            _check_limits(broker, name, value)
    for family in ("consumer", "share", "streams"):
        session, heartbeat = (
            values.get(f"{family}.{rest}", broker.value(f"group.{family}.{rest}"))
            for rest in ("session.timeout.ms", "heartbeat.interval.ms")
        )
        assert isinstance(session, int) and isinstance(heartbeat, int)
        if session <= heartbeat:
            raise ConfigError(
                f"{family}.session.timeout.ms={session}: expected more than "
                f"{family}.heartbeat.interval.ms={heartbeat}"
            )


def _check_limits(broker: "BrokerConfig", name: str, value: int) -> None:
    family, _, rest = name.partition(".")
    # The limit is group.streams.max.standby.replicas, without the "num".
    rest = rest.removeprefix("num.") if name == "streams.num.standby.replicas" else rest
    least, most = (f"group.{family}.{bound}.{rest}" for bound in ("min", "max"))
    if least in BROKER and value < broker.int(least):
        raise ConfigError(f"{name}={value}: expected at least {least}={broker.int(least)}")
    if most in BROKER and value > broker.int(most):
        raise ConfigError(f"{name}={value}: expected at most {most}={broker.int(most)}")
