"""What the measurements of ``headrace perf`` share: interruption, progress, figures and charts."""

import contextlib
import random
import string
from collections.abc import Iterator

from headrace.cli import output
from headrace.cli.client import interruptible
from headrace.cli.options import Format
from headrace.cli.percentiles import Percentiles

PROGRESS_INTERVAL_S = 0.5
# Several distinct values, so that compression gains only from the alphabet, not from repetition.
_PAYLOAD_COUNT_MAX = 64
_PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
_LETTERS = bytes(ord(string.ascii_letters[n % len(string.ascii_letters)]) for n in range(256))


class Measurement:
    """Whether a measurement ran to its end."""

    interrupted = False

    def leave_if_interrupted(self) -> None:
        if self.interrupted:
            output.leave(output.INTERRUPTED)


@contextlib.contextmanager
def measuring() -> Iterator[Measurement]:
    """Ctrl-C ends the measurement, not the command: the figures so far are still printed."""
    measurement = Measurement()
    try:
        with interruptible():
            yield measurement
    except KeyboardInterrupt:
        measurement.interrupted = True
    finally:
        output.progress_over()


def payloads(size: int) -> list[bytes]:
    """Values of random letters, the same in every run, so that runs can be compared."""
    generator = random.Random(0)
    count = max(1, min(_PAYLOAD_COUNT_MAX, _PAYLOAD_BYTES_MAX // max(size, 1)))
    return [generator.randbytes(size).translate(_LETTERS) for _ in range(count)]


def throughput(count: int, size: int, seconds: float) -> dict[str, object]:
    return {
        "seconds": round(seconds, 3),
        "records_per_s": round(count / seconds) if seconds else 0,
        "mb_per_s": round(size / seconds / 1e6, 2) if seconds else 0.0,
    }


def show_progress(count: int, wanted: int, seconds: float) -> None:
    output.progress(f"{count:,} of {wanted:,} records, {count / seconds:,.0f} records/s")


def show(format: Format, figures: dict[str, object], latencies: dict[str, Percentiles]) -> None:
    """The figures as a table with a chart for each latency; a latency without records has none."""
    named_ms = {name: percentiles.named_ms() for name, percentiles in latencies.items()}
    if format is Format.JSON:
        output.document({**figures, **{f"{name}_ms": ms for name, ms in named_ms.items()}})
        return
    output.table(
        ["FIGURE", "VALUE"],
        [
            (name, f"{value:,}" if isinstance(value, int | float) else value)
            for name, value in figures.items()
        ],
    )
    for name, milliseconds in named_ms.items():
        if milliseconds is not None:
            output.line("")
            output.heading(f"{name.replace('_', ' ')}, ms")
            output.bars([(label, ms, f"{ms:,.3f}") for label, ms in milliseconds.items()])
