"""Jars from Maven, downloaded once into a directory of the project's cache."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ALL = "*:*"


def fetch(directory: Path, artifacts: Mapping[str, str], *, without: str = "") -> list[Path]:
    """Return the jars of these artifacts and their dependencies; download them once.

    ``artifacts`` maps ``group:artifact`` to a version. ``without`` names a dependency to leave
    out; ``ALL`` leaves out every one.
    """
    if not directory.exists():
        # A broken download leaves no incomplete cache.
        unfinished = directory.with_name(f"{directory.name}.part-{os.getpid()}")
        unfinished.mkdir(parents=True)
        try:
            (unfinished / "pom.xml").write_text(_pom(artifacts, without))
            subprocess.run(
                ["mvn", "-q", "-B", "-Dstyle.color=never"]
                + ["dependency:copy-dependencies", "-DoutputDirectory=jars"],
                cwd=unfinished,
                check=True,
            )
            if not directory.exists():
                (unfinished / "jars").rename(directory)
        finally:
            shutil.rmtree(unfinished)
    return sorted(directory.glob("*.jar"))


def _pom(artifacts: Mapping[str, str], without: str) -> str:
    entries = []
    for name, version in artifacts.items():
        left_out = f"<exclusions><exclusion>{_ids(without)}</exclusion></exclusions>"
        entries.append(
            f"<dependency>{_ids(name)}<version>{version}</version>{left_out if without else ''}"
            "</dependency>"
        )
    return (
        f"<project><modelVersion>4.0.0</modelVersion>{_ids('headrace:jars')}<version>1</version>"
        f"<dependencies>{''.join(entries)}</dependencies></project>"
    )


def _ids(name: str) -> str:
    group, _, artifact = name.partition(":")
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
