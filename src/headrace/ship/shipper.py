"""The shipper: finds files, reads them in chunks, sends events and saves acknowledged positions."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.ship.acknowledgements import Acknowledgements
from headrace.ship.events import Events, Splitter
from headrace.ship.files import LogFile, LogFiles
from headrace.ship.generations import Catalog, Digest, Finding, Generation, Kind, Mark
from headrace.ship.sender import Delivery, Sender
from headrace.ship.state import StateDirectory, Totals, encoded

CHUNK_SIZE = 1 << 20
_SCAN_INTERVAL_S = 0.5
_SAVE_INTERVAL_S = 0.5
_IDLE_WAIT_S = 0.2
_STOP_WAIT_S = 10.0
_HELD_S = 0.5  # until an incomplete event is read again, although its file has not grown


@dataclass(frozen=True)
class Timing:
    """How long to wait for more."""

    event_s: float = 2.0  # lines of an event that begins with a pattern
    close_s: float = 60.0  # bytes of a rotated file, until it is closed


class ShippingFailed(Exception):
    """The broker refused a record: the shipper cannot continue without losing it."""


class Source:
    """A generation that is being read from a file."""

    def __init__(self, generation: Generation, file: LogFile, now: float) -> None:
        self.generation = generation
        self.file = file
        self.acknowledgements = Acknowledgements(generation)
        self.pending: Delivery | None = None  # what the producer had no room for
        self.held_size = -1  # without a complete event behind the position
        self.held_until = now
        self.size = -1  # when it last grew
        self.grown_at = now

    def move(self, file: LogFile) -> None:
        """Go on in another file, if it is another."""
        if self.file is not file:
            self.file, self.size = file, -1
        if self.generation.read.offset < self.acknowledgements.end:
            # A copy ends earlier, and is read again.
            self.acknowledgements.drop()
            self.pending = None

    def idle_s(self, now: float) -> float:
        """Seconds since the file last grew."""
        if self.file.size != self.size:
            self.size, self.grown_at = self.file.size, now
        return now - self.grown_at


class Shipper:
    """Ships files until it is stopped. Everything runs on the caller's thread."""

    def __init__(
        self,
        patterns: Sequence[str],
        directory: Path,
        make_sender: Callable[[Totals], Sender],
        splitter: Splitter,
        new_id: Callable[[], str],
        *,
        once: bool = False,
        from_end: bool = False,
        timing: Timing | None = None,
        report: Callable[[Finding], None] = lambda finding: None,
        progress: Callable[["Shipper"], None] = lambda shipper: None,
    ) -> None:
        self._stopping = False
        self._state = StateDirectory(directory)
        self._state.lock()
        try:
            saved = self._state.load()
            self._sender = make_sender(saved.totals)
        except BaseException:
            self._state.unlock()
            raise
        self.totals = saved.totals
        # Only a shipper that starts without positions may skip what is in the files.
        self._at_end = from_end and not saved.generations
        self._files = LogFiles(patterns)
        self.catalog = Catalog(new_id, saved.generations)
        self._splitter = splitter
        self._once = once
        self._timing = timing or Timing()
        self._report = report
        self._progress = progress
        self._sources: dict[str, Source] = {}
        self._reported: set[str] = set()  # paths that cannot be read
        self._scan_at = 0.0
        self._save_at = 0.0
        self._saves = 0
        self._saved = 0  # the number of the newest save that was done

    def stop(self) -> None:
        """End ``run`` soon. May be called by a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Ship until ``stop`` is called, or with ``once`` until everything is acknowledged."""
        try:
            while not self._must_stop() and not self._turn():
                self._progress(self)
            # Wait for acknowledgements: what they cover is not sent again at the next start.
            give_up_at = time.monotonic() + _STOP_WAIT_S
            while self._sender.queued and time.monotonic() < give_up_at:
                self._sender.flush(0.5)
            self._save_counted()
            self._sender.flush(0.5)
            self._save()
        finally:
            self._files.close()
            self._state.unlock()
        if self._sender.failure is not None:
            raise ShippingFailed(self._sender.failure)

    @property
    def lag(self) -> int:
        """Bytes that were seen and not acknowledged."""
        return sum(
            max(0, each.size - each.acknowledged.offset)
            for each in self.catalog.generations.values()
        )

    def _turn(self) -> bool:
        """One round over all files; True if there is nothing left to do."""
        now = time.monotonic()
        if now >= self._scan_at:
            self._scan(now)
        moved = False
        for source in list(self._sources.values()):
            moved |= self._read(source, now)
            if self._must_stop():
                break
        self._sender.poll(0 if moved else _IDLE_WAIT_S)
        if now >= self._save_at:
            self._save_counted()
            self._save_at = time.monotonic() + _SAVE_INTERVAL_S
        return self._once and not moved and not self._in_flight() and not self.catalog.waiting

    def _in_flight(self) -> bool:
        return any(source.acknowledgements for source in self._sources.values())

    def _must_stop(self) -> bool:
        return self._stopping or self._sender.failure is not None

    # --- finding files ---------------------------------------------------------------

    def _scan(self, now: float) -> None:
        self._scan_at = now + _SCAN_INTERVAL_S
        files = self._files.scan(self.catalog.generations.values())
        found: list[LogFile] = []

        def siblings(generation: Generation) -> Iterator[LogFile]:
            for file in self._files.siblings(generation):
                found.append(file)
                yield file

        findings = self._unreadable(files)
        findings += self.catalog.observe(files, siblings, now, self._at_end)
        self._at_end = False
        for file in found:
            if any(each.key == file.key for each in self.catalog.generations.values()):
                self._files.adopt(file)
            else:
                file.close()
        self._match(now)
        in_use = {source.file.key for source in self._sources.values()}
        for file in files:
            if file.key not in in_use:  # empty, compressed, or perhaps a copy
                file.compared()
                file.close()
        for finding in findings:
            if finding.kind is Kind.LOST:
                self.totals.lost_bytes += finding.size
            self._report(finding)
        # An event ID must be the same after a crash: a generation is on disk before its events
        # leave.
        if any(finding.kind is not Kind.COMPRESSED for finding in findings):
            self._save()

    def _unreadable(self, files: list[LogFile]) -> list[Finding]:
        trouble = {file.path: file.trouble for file in files if file.trouble is not None}
        new = [path for path in trouble if path not in self._reported]
        self._reported = set(trouble)
        return [Finding(Kind.UNREADABLE, path, reason=trouble[path]) for path in new]

    def _match(self, now: float) -> None:
        """Pair generations with their files."""
        for generation in list(self.catalog.generations.values()):
            source = self._sources.get(generation.id)
            file = None if generation.gone else self._files.by_key.get(generation.key)
            if file is not None:
                file.compared()
                if source is None:
                    self._sources[generation.id] = Source(generation, file, now)
                else:
                    source.move(file)
            elif source is None or not source.acknowledgements:
                self._sources.pop(generation.id, None)
                if generation.gone:
                    self.catalog.forget(generation)

    # --- reading ---------------------------------------------------------------------

    def _read(self, source: Source, now: float) -> bool:
        """Send the next chunk of a file; False if there is none."""
        if source.pending is not None:
            return self._send(source, source.pending)
        generation, file = source.generation, source.file
        if generation.gone:
            return False
        file.refresh()
        idle_s = source.idle_s(now)
        mark = generation.read
        if file.size == mark.offset:
            self._close_if_idle(source, idle_s)
            return False
        if file.size == source.held_size and now < source.held_until:
            return False
        tail_size = mark.tail.length
        data = file.read(mark.offset - tail_size, tail_size + self._chunk_size)
        if Digest.of(data[:tail_size]) != mark.tail or not generation.begins(file):
            file.compared(matches=False)
            self._scan_at = now  # it was truncated or replaced
            return False
        generation.see(file)
        chunk = data[tail_size:]
        events = self._events(source, chunk, mark, idle_s)
        if not events.values:
            source.held_size, source.held_until = file.size, now + _HELD_S
            self._close_if_idle(source, idle_s)
            return False
        after = Mark.after(mark.offset + events.size, chunk[: events.size], events.inside)
        sent = source.acknowledgements.sent(after, len(events.values), self._sender.failed)
        generation.advance(after)
        return self._send(source, Delivery(generation, events, sent))

    def _send(self, source: Source, delivery: Delivery) -> bool:
        """Send a chunk, or as much as the producer has room for. The reader waits meanwhile."""
        before = delivery.sent
        source.pending = None if self._sender.send(delivery) else delivery
        return source.pending is None or delivery.sent > before

    @property
    def _chunk_size(self) -> int:
        return max(CHUNK_SIZE, 2 * self._splitter.limit)

    def _events(self, source: Source, chunk: bytes, mark: Mark, idle_s: float) -> Events:
        """The complete events of a chunk. What is held back leaves if nothing follows it."""
        events = self._splitter.split(chunk, mark.offset, inside=mark.inside)
        if events.values:
            return events
        rotated = source.generation.path != source.generation.file or source.file.deleted
        final = chunk
        if not rotated or idle_s < self._timing.close_s:
            if not self._splitter.holds_last_event or idle_s < self._timing.event_s:
                return events
            final = chunk[: chunk.rfind(b"\n") + 1]  # a partial line stays
        return self._splitter.split(final, mark.offset, inside=mark.inside, final=True)

    def _close_if_idle(self, source: Source, idle_s: float) -> None:
        """Close a file that does not grow; a scan opens it again when it does."""
        if idle_s < self._timing.close_s or source.acknowledgements:
            return
        if source.file.deleted:
            self._files.drop(source.file)
            self._sources.pop(source.generation.id)
        else:
            source.file.close()

    def _save_counted(self) -> None:
        """Save positions once the counts of the records before them are published.

        The other way round, a shipper that is killed in between would have shipped records that
        nobody counted.
        """
        positions = encoded(self.catalog.generations.values(), self.totals)
        self._saves += 1
        number = self._saves

        def save() -> None:
            if number > self._saved:  # no newer positions are saved
                self._saved = number
                self._state.write(positions)

        self._sender.publish_counts(save)

    def _save(self) -> None:
        self._saves += 1
        self._saved = self._saves
        self._state.save(self.catalog.generations.values(), self.totals)
