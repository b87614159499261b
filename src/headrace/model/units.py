"""Numbers as people read them, for messages."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def duration(ms: int) -> str:
    """A time span in its two largest units: ``3 h 35 min``."""
    for (unit, size), (next_unit, next_size) in zip(_UNITS, _UNITS[1:], strict=False):
        count, rest = divmod(ms, size)
        if count:
            next_count = rest // next_size
            return f"{count:,} {unit}" + (f" {next_count} {next_unit}" if next_count else "")
    return f"{ms} ms"
