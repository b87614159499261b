"""The command ``python -m bench NAME ...``; ``all`` and ``results`` are names too."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from bench import report
from bench.apache_kafka import missing
from bench.figures import FIGURES, purpose
from bench.node import headrace_of, scratch_directory
from bench.report import Row
from bench.run import SIDES, Run

_BEFORE = "before"  # a side: another checkout


def main() -> int:
    """Measure the requested figures. The exit status is 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Headrace and Apache Kafka on this machine, in the same run.",
        epilog="\n".join(f"  {name:12} {purpose(name)}" for name in FIGURES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "figures",
        nargs="*",
        default=["all"],
        metavar="NAME",
        help="Figures to measure, or all; results prints the latest stored results.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="Number of rounds (default 3).")
    parser.add_argument(
        "--quick", action="store_true", help="Check that it runs; results mean nothing."
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="Measure beside another checkout with its own .venv, in place of Apache Kafka: "
        "figures of one node, without targets, not kept.",
    )
    parser.add_argument("--alone", action="store_true", help="Measure without Apache Kafka.")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--no-keep", action="store_true", help="Do not append to results.csv.")
    asked = parser.parse_args()
    if asked.figures == ["results"]:
        print(report.newest())
        return 0
    names = list(FIGURES) if "all" in asked.figures else asked.figures
    if unknown := [name for name in names if name not in FIGURES]:
        parser.error(f"unknown figure {unknown[0]}; choose from {', '.join(FIGURES)}")
    if not asked.alone and asked.before is None and (reason := missing()):
        parser.error(f"Apache Kafka {reason}. Use --alone to measure without it")
    if os.getloadavg()[0] > 0.7 and not asked.quick:
        print(f"  The machine is not idle: load {os.getloadavg()[0]:.2f}", file=sys.stderr)

    rows: list[Row] = []
    with scratch_directory() as scratch:
        run = Run(scratch, 1 if asked.quick else asked.rounds, asked.quick)
        if asked.alone:
            run.sides = ("headrace",)
        elif asked.before is not None:
            run.sides = ("headrace", _BEFORE)
            run.kinds = SIDES | {_BEFORE: headrace_of(asked.before)}
        for name in names:
            measured = FIGURES[name](run)
            if asked.before is not None:
                beside = asked.before.name
                measured = [replace(row, targets=(), beside=beside) for row in measured]
            elif not asked.no_keep:
                report.keep(measured, quick=asked.quick)
            rows += measured
    print(report.table(rows) if asked.format == "table" else report.as_json(rows))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
