"""The value of one setting and its text: parsing, checking, printing.

The checks are those of Kafka 4.3.1. An error names the setting and the expected value.
"""

from headrace.model.errors import ConfigError
from headrace.model.settings.kafka import ANY_CASE, NEVER_EMPTY, Row

Value = bool | int | float | str | list[str] | None

_BITS = {"short": 16, "int": 32, "long": 64}


def parse_value(name: str, text: str, row: Row) -> Value:
    """The value of the text of one setting. Raises ConfigError if the text is invalid."""
    kind = row.kind
    text = text.strip()
    if kind in _BITS:
        integer = _parse_integer(name, text, row)
        _refuse_outside(integer, name, text, row)
        return integer
    if kind == "bool":
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise _refused(name, text, row)
        return lowered == "true"
    if kind == "list":
        return _parse_list(name, text, row)
    if kind == "float":
        number = _parse_float(name, text, row)
        _refuse_outside(number, name, text, row)
        return number
    return _parse_text(name, text, row)


def _parse_integer(name: str, text: str, row: Row) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # No long has more than 20 characters; int() would raise its own error for very long texts.
    if not (digits.isascii() and digits.isdigit() and len(text) <= 20):
        raise _refused(name, text, row)
    number = int(text)
    limit = 1 << (_BITS[row.kind] - 1)
    if not -limit <= number < limit:
        raise _refused(name, text, row)
    return number


def _parse_float(name: str, text: str, row: Row) -> float:
    plain = text[:-1] if text[-1:] in ("f", "F", "d", "D") else text
    try:
        number = float(plain)
    except ValueError:
        raise _refused(name, text, row) from None
    if "_" in text or number != number:
        raise _refused(name, text, row)
    return number


def _refuse_outside(number: int | float, name: str, text: str, row: Row) -> None:
    rule = row.rule
    if isinstance(rule, tuple):
        low, high = rule[0], rule[1]
        below = isinstance(low, int | float) and number < low
        above = isinstance(high, int | float) and number > high
        if (below or above) and number not in rule[2:]:
            raise _refused(name, text, row)


def _parse_text(name: str, text: str, row: Row) -> str:
    rule = row.rule
    if rule is None:
        return text
    if rule == ("reset",):
        allowed = text in ("latest", "earliest") or _is_by_duration(text)
    elif isinstance(rule, tuple):
        allowed = (text.lower() if name in ANY_CASE else text) in rule
    else:
        allowed = bool(text)
    if not allowed:
        raise _refused(name, text, row)
    return text


def _is_by_duration(text: str) -> bool:
    import re

    pattern = r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"
    return re.fullmatch(pattern, text, re.ASCII) is not None


def split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _parse_list(name: str, text: str, row: Row) -> list[str]:
    rule = row.rule
    items = split_list(text)
    if not items:
        if name in NEVER_EMPTY:
            raise _refused(name, text, row)
        return items
    if rule == ("throttled",):
        if items != ["*"] and not all(map(_is_partition_and_broker, items)):
            raise _refused(name, text, row)
    elif "" in items or len(set(items)) < len(items):
        raise ConfigError(f"{name}={text}: expected a list without empty or repeated entries")
    elif isinstance(rule, tuple) and not set(items) <= set(rule):
        raise _refused(name, text, row)
    return items


def _is_partition_and_broker(text: str) -> bool:
    partition, _, broker = text.partition(":")
    return text.isascii() and partition.isdigit() and broker.isdigit()


def _refused(name: str, text: str, row: Row) -> ConfigError:
    shown = "(hidden)" if row.kind == "password" else text
    return ConfigError(f"{name}={shown}: expected {expected(row)}")


def expected(row: Row) -> str:
    """A description of the valid values."""
    kind, rule = row.kind, row.rule
    if kind == "bool":
        return "true or false"
    if rule == ("throttled",):
        return "* or a list of partition:broker"
    if rule == ("reset",):
        return "latest, earliest or by_duration: with an ISO 8601 duration"
    if kind == "list":
        if isinstance(rule, tuple):
            return "a list of " + ", ".join(map(str, rule))
        return "a list with at least one entry, separated by commas"
    if kind in _BITS or kind == "float":
        return _expected_number(kind, rule if isinstance(rule, tuple) else (None, None))
    if isinstance(rule, tuple):
        return "one of " + ", ".join(map(str, rule))
    return "a text that is not empty"


def _expected_number(kind: str, rule: tuple[int | float | str | None, ...]) -> str:
    noun = "a number" if kind == "float" else "an integer"
    low, high = rule[0], rule[1]
    if high is None and kind != "float":
        # The limits of the type itself, since a value may be refused for them.
        high = (1 << (_BITS[kind] - 1)) - 1
        if low is None:
            low = -high - 1
    if low is None:
        return noun
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    return f"{noun} {limits}" + "".join(f", or {extra}" for extra in rule[2:])


def value_to_text(value: Value) -> str | None:
    """A value as Kafka prints it: lists joined by commas, lower-case booleans, Java's doubles."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return _float_to_text(value)
    return str(value)


def _float_to_text(number: float) -> str:
    """As Java prints it: with an exponent from 10 million up and below a thousandth."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    digits = f"{number:.16e}"
    for precision in range(16):
        shorter = f"{number:.{precision}e}"
        if float(shorter) == number:
            digits = shorter
            break
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
