"""Java and ZooKeeper's jars are found, or the error says what to install."""

import sys
from pathlib import Path

import pytest

from headrace.launch import java


def installed(directory: Path, release: str | None, script: str = "exit 1") -> Path:
    """A Java that is only a script, with or without the file that tells its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (directory / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{release}"\n')
    return program


def test_the_java_of_java_home_comes_before_that_of_the_path(tmp_path, monkeypatch):
    of_home, on_path = installed(tmp_path / "home", "21.0.1"), installed(tmp_path / "path", "17")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.find_java() == of_home
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java.find_java() == on_path


def test_without_java_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(java.JavaMissing, match="Java 17 or newer.*Install it") as missing:
        java.find_java()
    assert "\n" not in str(missing.value)


@pytest.mark.parametrize(
    ("release", "script", "found"),
    [
        ("1.8.0_392", "exit 1", "Java 8"),
        ("11.0.2", "exit 1", "Java 11"),
        (None, """echo 'openjdk version "11.0.2" 2019' >&2""", "Java 11"),
    ],
)
def test_an_old_java_is_refused(tmp_path, monkeypatch, release, script, found):
    installed(tmp_path, release, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissing, match=f"is {found}. Install a newer one"):
        java.find_java()


def test_a_java_that_does_not_tell_its_version_is_tried(tmp_path, monkeypatch):
    program = installed(tmp_path, None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find_java() == program


def test_the_class_path_has_what_zookeeper_needs_of_pysparks_jars(tmp_path, monkeypatch):
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('not imported')")
    for name in ("zookeeper-3.9.5.jar", "slf4j-api-2.jar", "spark-core.jar", "hive-exec.jar"):
        (jars / name).touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # another test may have loaded it
    expected = [str(jars / "slf4j-api-2.jar"), str(jars / "zookeeper-3.9.5.jar")]
    assert java.zookeeper_class_path().split(":") == expected


def test_without_pyspark_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # another test may have loaded it
    with pytest.raises(java.JavaMissing, match="pip install pyspark"):
        java.zookeeper_class_path()
