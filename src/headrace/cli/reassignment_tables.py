"""How the commands that move partitions show what moves, and read the throttle."""

from headrace.cli import output, values
from headrace.cli.cluster_view import numbers
from headrace.cli.options import Format
from headrace.cli.reassignment_plan import Move


def parse_rate(text: str | None) -> int | None:
    if text is None:
        return None
    rate = values.size(text)
    if rate == 0:
        raise values.wrong("--throttle 0: expected at least 1 byte per second")
    return rate


def show_moves(todo: list[Move], format: Format) -> None:
    total = sum(move.bytes_to_copy for move in todo)
    if format is Format.JSON:
        output.document({"bytes": total, "moves": [as_document(move) for move in todo]})
        return
    if not todo:
        output.line("All partitions have these replicas already")
        return
    output.table(
        ["TOPIC", "PARTITION", "FROM", "TO", "ADD", "REMOVE", "COPY"],
        [
            (
                move.topic,
                move.partition,
                numbers(move.current),
                numbers(move.target),
                numbers(move.added),
                numbers(move.removed),
                values.readable_size(move.bytes_to_copy),
            )
            for move in todo
        ],
    )
    copied: dict[int, int] = {}
    for move in todo:
        for broker in move.added:
            copied[broker] = copied.get(broker, 0) + move.size
    output.note(
        f"{values.counted(len(todo), 'partition')}, {values.readable_size(total)} to copy"
        + "".join(
            f"; broker {broker} gets {values.readable_size(size)}"
            for broker, size in sorted(copied.items())
        )
    )


def as_document(move: Move) -> dict[str, object]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": move.current,
        "to": move.target,
        "adding": move.added,
        "removing": move.removed,
        "bytes": move.bytes_to_copy,
    }
