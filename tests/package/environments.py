"""Environments of users: what they run in, and what they install from."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
LIMIT_S = 300


def run(*command, **options):
    options = {"capture_output": True, "text": True, "timeout": LIMIT_S} | options
    done = subprocess.run([str(word) for word in command], **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_environment():
    """Isolated builds use the pinned setuptools, too."""
    return {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def own_environment(bare):
    """The environment of a user's shell, without paths and settings of this repository."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "HEADRACE"))
    }
    return {**kept, "PATH": f"{bare}{os.pathsep}{os.environ['PATH']}"}
