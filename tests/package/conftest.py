"""The wheel that the tests of this directory install."""

import shutil
import sys

import pytest

from tests.package.environments import ROOT, pip_environment, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Built outside of the working tree, from tracked and new files."""
    directory = tmp_path_factory.mktemp("package")
    source = directory / "source"
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if name.split("/")[0] in ("src", "LICENSE", "README.md", "pyproject.toml"):
            if not (ROOT / name).exists():
                continue  # deleted, but not committed yet
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", directory / "dist", source,
        env=pip_environment())  # fmt: skip
    (built,) = (directory / "dist").glob("*.whl")
    return built
