"""Two versions of Headrace: the one of the commit in ``baseline``, and the working tree.

The first is built as a wheel and unpacked into an environment of its own, which shares only the
installed dependencies with this one. Nothing is fetched: a shallow clone has no such commit.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).with_name("baseline")
_LIMIT_S = 300


class CommitMissing(Exception):
    """This clone does not have the commit; the message says how to get it."""


class Version(NamedTuple):
    """An interpreter that imports one version of Headrace."""

    name: str
    python: Path

    def package(self) -> Path:
        """The directory of the package that its brokers run."""
        line = [self.python, "-c", "import headrace; print(headrace.__path__[0])"]
        return Path(_run(*line).strip())


WORKING_TREE = Version("working tree", Path(sys.executable))


def baseline_commit() -> str:
    return BASELINE.read_text().strip()


def build_version(commit: str, directory: Path) -> Version:
    """Build a commit of this repository. Raises CommitMissing."""
    if subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True
    ).returncode:
        raise CommitMissing(
            f"this clone does not have commit {commit} of tests/upgrade/baseline. "
            "Fetch it with: git fetch --unshallow"
        )
    source = directory / "source"
    archive = directory / "source.tar"
    _run("git", "-C", ROOT, "archive", "-o", archive, commit)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    built = directory / "dist"
    environment = {**os.environ, "PIP_CONSTRAINT": str(source / "constraints.txt")}
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", built, source, env=environment)
    shutil.rmtree(source)
    (wheel,) = built.glob("*.whl")
    home = directory / "environment"
    venv.create(home)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(packages)
    # A path in a .pth file: Python looks there last, and does not read the .pth files in it, one of
    # which names the working tree.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Version(commit[:7], home / "bin" / "python")


def _run(*command: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=_LIMIT_S, env=env, cwd="/"
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
