"""``headrace ship status``: the positions of a shipper, and what is left to ship."""

from pathlib import Path

from headrace.cli import output, values
from headrace.cli.options import Format
from headrace.ship.generations import Generation
from headrace.ship.state import Saved, StateDirectory, StateUnusable


def show_status(directory: Path, format: Format) -> None:
    """Print each generation with its position, as saved last."""
    state = StateDirectory(directory)
    try:
        saved = state.load()
    except StateUnusable as failure:
        raise output.CommandFailed(str(failure)) from None
    owner = state.owner()
    if format is Format.JSON:
        output.document(_document(saved, owner))
        return
    output.table(
        ["FILE", "PATH", "GENERATION", "SIZE", "ACKNOWLEDGED", "LAG"],
        [
            (
                each.file,
                each.path,
                each.id,
                _size(each),
                each.acknowledged.offset,
                _size(each) - each.acknowledged.offset,
            )
            for each in saved.generations
        ],
    )
    totals = saved.totals
    running = "not running" if owner is None else f"running (pid {owner})"
    output.note(
        f"{running}; {values.counted(totals.events, 'event')} shipped, {totals.lost_bytes:,} bytes "
        f"lost, {totals.cut:,} events cut, {totals.unparsed:,} unparsed"
    )


def _document(saved: Saved, owner: int | None) -> dict[str, object]:
    return {
        "pid": owner,
        "totals": vars(saved.totals),
        "files": [
            {
                "file": each.file,
                "path": each.path,
                "generation": each.id,
                "size": _size(each),
                "acknowledged": each.acknowledged.offset,
                "lag": _size(each) - each.acknowledged.offset,
            }
            for each in saved.generations
        ],
    }


def _size(generation: Generation) -> int:
    """The present size, if the path still leads to this content."""
    try:
        status = Path(generation.path).stat()
    except OSError:
        return generation.size
    if (status.st_dev, status.st_ino) != generation.key:
        return generation.size
    return max(status.st_size, generation.acknowledged.offset)
