"""Let Apache Kafka's classes read and rewrite our bytes; store frames that came back unchanged.

    python scripts/record_rewritten.py 4.3.1/jars 3.9.1/jars

The script tries the classes of each release in turn, until one knows the message and version. The
tests compare most versions with kio, which needs no Java. For the others (dropped by the newest
release, or records of internal topics) one frame each is stored in tests/golden/rewritten.jsonl.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from headrace.wire.schema import Field  # noqa: E402
from tests.unit.wire.message_values import (  # noqa: E402
    Values,
    encoded,
    every_message_and_version,
)
from tests.unit.wire.test_schema_against_kio import KIO_CLASSES  # noqa: E402

SEEDS = 4


class JavaValues(Values):
    """Values without records, because Kafka parses record batches while it reads."""

    def element(self, field: Field) -> object:
        return b"" if field.element == "records" else super().element(field)


def verdicts(jars: Path, lines: list[str]) -> list[str]:
    command = ["java", "-cp", f"{jars}/*", str(ROOT / "scripts" / "RewriteFrames.java")]
    answer = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
    return [line.split(" ", 2)[2] for line in answer.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jars", type=Path, nargs="+", help="Directories with jars, newest first.")
    arguments = parser.parse_args()
    frames = [
        (
            name,
            message_version,
            encoded(JavaValues(name, message_version, seed).message(), message_version),
        )
        for name, message_version in every_message_and_version()
        for seed in range(SEEDS)
    ]
    asked = [f"{name} {message_version} {frame.hex()}" for name, message_version, frame in frames]
    found = ["unknown"] * len(asked)
    for jars in arguments.jars:
        answers = verdicts(jars, asked)
        found = [new if old == "unknown" else old for old, new in zip(found, answers, strict=True)]
    kept = {}
    for (name, message_version, frame), verdict in zip(frames, found, strict=True):
        if verdict != "same":
            print(name, message_version, verdict)
        elif message_version not in KIO_CLASSES.get(name, {}):
            kept[name, message_version] = frame.hex()
    lines = [
        json.dumps({"message": name, "version": message_version, "frame": frame})
        for (name, message_version), frame in sorted(kept.items())
    ]
    (ROOT / "tests" / "golden" / "rewritten.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{found.count('same')} of {len(found)} came back unchanged; {len(kept)} frames stored")


if __name__ == "__main__":
    main()
