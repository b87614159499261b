"""Numbered lines, rotations of every kind, kill -9 of shipper and broker: none lost, none doubled.

All rounds ship a million lines with 50 rotations of each kind, 20 kills of the shipper and 20 of
the broker, ten of them together. Some files are rotated while no shipper runs.
"""

import gzip
import random
import shutil
import time

import pytest

from headrace.testing import Broker
from tests.fakes.shipping import ShipperProcess, ids_by_value, record_count, shipped
from tests.fakes.waiting import wait_until

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

WITHOUT_SHIPPER = ("rename", "rename later", "copytruncate")  # rotations that lose nothing then
KINDS = (*WITHOUT_SHIPPER, "truncate and rewrite", "compress", "delete")
ALL_ROUNDS = 20
PATIENCE_S = 120


class Program:
    """Writes numbered lines to a log file, which is rotated."""

    def __init__(self, directory, shipper):
        self.path = directory / "app.log"
        self.number = 0
        self._shipper = shipper
        self._file = self.path.open("ab", buffering=0)

    def write(self, count):
        lines = (
            b"%08d INFO a line of a program\n" % n for n in range(self.number, self.number + count)
        )
        self._file.write(b"".join(lines))
        self.number += count

    def rotate(self, kind):
        self._shift()
        first = self._old(1)
        if kind in ("rename", "rename later"):
            self.path.rename(first)
            if kind == "rename later":
                self.write(50)  # the program has not opened its new file yet
        elif kind == "copytruncate":
            shutil.copyfile(self.path, first)
            self._file.truncate(0)
        elif kind == "compress":
            self._wait_shipped()
            first.with_name(first.name + ".gz").write_bytes(gzip.compress(self.path.read_bytes()))
            self.path.unlink()
        elif kind == "truncate and rewrite":
            self._wait_shipped()
            self._file.truncate(0)
            self.write(200)
        else:
            self._wait_shipped()
            self.path.unlink()
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def close(self):
        self._file.close()

    def _shift(self):
        """The oldest file is deleted only after it was shipped."""
        if self._old(9).exists():
            wait_until(lambda: self._shipper.has_shipped(self._old(9)), PATIENCE_S)
        for number in range(9, 0, -1):
            if self._old(number).exists():
                self._old(number).rename(self._old(number + 1))
        self._old(10).unlink(missing_ok=True)

    def _old(self, number):
        return self.path.with_name(f"app.log.{number}")

    def _wait_shipped(self):
        if self.path.stat().st_size:
            wait_until(lambda: self._shipper.has_shipped(self.path), PATIENCE_S)


def test_no_line_is_lost_or_doubled(tmp_path, torture_rounds):
    rng = random.Random(torture_rounds)
    everything = torture_rounds >= ALL_ROUNDS
    line_count = 1_000_000 if everything else 20_000
    rotations = list(KINDS) * (50 if everything else 2)
    rng.shuffle(rotations)
    shipper_kills, broker_kills = _draw_kills(rng, len(rotations), torture_rounds)
    logs = tmp_path / "logs"
    logs.mkdir()
    with (
        Broker(process=True, data=tmp_path / "data", topics={"logs": 2}) as broker,
        ShipperProcess(broker.bootstrap_servers, tmp_path, logs / "app.log*", "logs") as shipper,
    ):
        program = Program(logs, shipper)
        for turn, kind in enumerate(rotations):
            program.write(line_count // len(rotations))
            if turn in shipper_kills | broker_kills:
                # At any moment: the shipper looks for files, and saves positions, twice a second.
                time.sleep(rng.uniform(0, 1))
            if turn in shipper_kills:
                shipper.kill()
            if turn in broker_kills:
                broker.kill()
                broker.start()
            if turn in shipper_kills and kind in WITHOUT_SHIPPER:
                program.rotate(kind)
                shipper.start()
            else:
                if turn in shipper_kills:
                    shipper.start()
                program.rotate(kind)
            assert shipper.running(), shipper.log.read_text()
        program.write(100)
        program.close()
        wait_until(
            lambda: all(map(shipper.has_shipped, [p for p in logs.iterdir() if p.suffix != ".gz"])),
            PATIENCE_S,
        )
        assert shipper.stop() == 0
        events = shipped(broker.bootstrap_servers, "logs")
        repeated = record_count(broker.bootstrap_servers, "logs") - len(events)
        totals = shipper.saved()["totals"]

    by_value = ids_by_value(events)
    numbers = sorted(int(value[:8]) for value in by_value)
    assert numbers == list(range(program.number)), "lost"
    assert [ids for ids in by_value.values() if len(ids) > 1] == [], "doubled"
    assert totals["lost_bytes"] == 0
    assert repeated or not everything, "no kill came between acknowledgement and saved position"
    print(
        f"{program.number:,} lines, {len(rotations)} rotations, {len(shipper_kills)} kills of the "
        f"shipper and {len(broker_kills)} of the broker: each line once ({repeated:,} sent again)"
    )


def _draw_kills(rng, turns, count):
    """The turns in which the shipper is killed, and the broker; half of them are the same."""
    shipper_kills = rng.sample(range(turns), count)
    others = [turn for turn in range(turns) if turn not in shipper_kills]
    together = shipper_kills[: count // 2]
    return set(shipper_kills), {*together, *rng.sample(others, count - len(together))}
