"""Finds Java, and the jars of ZooKeeper that PySpark brings, without importing PySpark."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17

# What ZooKeeper uses of PySpark's 300 jars: with all of them on the class path it starts in twice
# the time and takes half as much memory again.
_ZOOKEEPER_JARS = (
    "zookeeper-",
    "slf4j-api-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "metrics-core-",
    "snappy-java-",
    "netty-",  # for TLS
)


class JavaMissing(Exception):
    """Java or a jar is missing; the message says what to install."""


def find_java() -> Path:
    """The ``java`` of JAVA_HOME, or else of PATH. Raises JavaMissing if it is too old."""
    of_home = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else None
    on_path = shutil.which("java")
    if of_home is not None and of_home.exists():
        java = of_home
    elif on_path is not None:
        java = Path(on_path)
    else:
        raise JavaMissing(
            f"ZooKeeper requires Java {OLDEST} or newer; there is no java in JAVA_HOME or PATH. "
            f"Install it (Debian: apt install openjdk-{OLDEST}-jre-headless, macOS: "
            f"brew install openjdk@{OLDEST}), or name a running ZooKeeper"
        )
    found = _version_of(java)
    if found is not None and found < OLDEST:
        raise JavaMissing(
            f"ZooKeeper requires Java {OLDEST} or newer; {java} is Java {found}. Install a newer "
            "one and set JAVA_HOME to it"
        )
    return java


def zookeeper_class_path() -> str:
    """The jars that ZooKeeper needs. Raises JavaMissing if PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        jars = sorted(
            str(jar)
            for jar in Path(directory, "jars").glob("*.jar")
            if jar.name.startswith(_ZOOKEEPER_JARS)
        )
        if any(Path(jar).name.startswith("zookeeper-") for jar in jars):
            return os.pathsep.join(jars)
    raise JavaMissing(
        "ZooKeeper comes with PySpark, which is not installed: run pip install pyspark, or name a "
        "running ZooKeeper"
    )


def _version_of(java: Path) -> int | None:
    """The major version; None if it cannot be told. A file beside Java has it in most installs."""
    release = java.resolve().parent.parent / "release"
    if release.exists():
        text = release.read_text(errors="replace")
    else:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True)
        text = ran.stderr + ran.stdout
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
