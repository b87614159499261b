"""Daily upkeep of the tables of a pipeline: joins the files of dead letters, deletes unused files.

Rows of tables are folded while batches run (``Fanout.fold``). This deletes the files that folds and
killed batches left, once a day, as ``headrace pipeline vacuum`` does for loaded tables.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from deltalake.exceptions import DeltaError

from headrace.pipeline.warehouse.compaction import compact, vacuum
from headrace.pipeline.warehouse.storage import Location
from headrace.pipeline.warehouse.table import ORPHAN_AGE_H_MIN, open_table
from headrace.spark.failures import PipelineError

log = logging.getLogger("headrace.pipeline")

_DUE_AFTER_S = 86_400.0
_LOOK_EVERY_S = 60.0


class Upkeep:
    """Of the tables of one pipeline. ``marker`` is a file whose age is that of the last upkeep."""

    def __init__(
        self, marker: Path, tables: Sequence[Path | Location], letters: Path | Location
    ) -> None:
        self._marker = marker
        self._tables = tables
        self._letters = letters
        self._look_at = 0.0

    def run_if_due(self) -> bool:
        """Not while a batch of an earlier run may still have to run again: it reads old versions.

        A failure is logged, and tried again after a day.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        try:
            if time.time() - self._marker.stat().st_mtime < _DUE_AFTER_S:
                return False
        except FileNotFoundError:
            # The first run of a pipeline left nothing yet.
            self._marker.touch()
            return False
        self._marker.touch()
        for place in (*self._tables, self._letters):
            try:
                self._clean(place)
            except (PipelineError, DeltaError, OSError) as failed:
                log.warning("Could not clean up %s: %s", place, failed)
        return True

    def _clean(self, place: Path | Location) -> None:
        table = open_table(place)
        if table is None:
            return
        if place == self._letters:
            compact(table)
        deleted = vacuum(table, ORPHAN_AGE_H_MIN, dry_run=False)
        if deleted:
            log.info("Deleted %d unused files of %s", len(deleted), place)
