"""The wheel in an empty environment: small and complete, and the README's examples work."""

import json
import re
import signal
import subprocess
import sys
import zipfile

import pytest

from headrace import __version__
from tests.package.environments import (
    CONSTRAINTS,
    LIMIT_S,
    ROOT,
    own_environment,
    pip_environment,
    run,
)

# Packages that the base install may bring. Spark, Arrow and Java are not among them.
EXPECTED = {
    "headrace", "crc32c", "cramjam", "google-re2", "confluent-kafka", "typer", "rich",
    # dependencies of these
    "annotated-doc", "annotated-types", "click", "markdown-it-py", "mdurl", "pydantic",
    "pydantic-core", "pygments", "shellingham", "typing-extensions", "typing-inspection",
    # of the environment
    "pip", "setuptools",
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The scripts directory of an environment with only the wheel and its dependencies."""
    directory = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", directory / "venv")
    scripts = directory / "venv" / "bin"
    run(scripts / "python", "-m", "pip", "install", "-q", wheel, env=pip_environment())
    return scripts


def readme_examples():
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def test_the_wheel_contains_the_package_and_nothing_else_of_the_repository(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"headrace", "pyspark_headrace", f"headrace-{__version__}.dist-info"}
    assert "headrace/py.typed" in names
    assert "headrace/wire/messages/__init__.pyi" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".jar", ".c", ".so"))]


def test_the_base_install_brings_no_spark_and_no_java(bare):
    listed = json.loads(run(bare / "python", "-m", "pip", "list", "--format", "json"))
    installed = {re.sub(r"[-_.]+", "-", package["name"]).lower() for package in listed}
    assert installed <= EXPECTED, f"unexpected: {sorted(installed - EXPECTED)}"
    assert "headrace" in installed
    assert not list(bare.parent.rglob("*.jar"))


def test_the_installed_versions_are_the_pinned_ones(bare):
    pinned = dict(
        line.split("==")
        for line in CONSTRAINTS.read_text().splitlines()
        if line and not line.startswith("#")
    )
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pinned.items()}
    for package in json.loads(run(bare / "python", "-m", "pip", "list", "--format", "json")):
        name = re.sub(r"[-_.]+", "-", package["name"]).lower()
        if name not in ("headrace", "pip", "setuptools"):
            assert package["version"] == pinned.get(name), f"{name} is not pinned"


def test_the_examples_of_the_readme_run_without_pytest(bare, tmp_path):
    program = tmp_path / "example.py"
    names = [re.search(r"def (\w+)", shown)[1] for shown in readme_examples()]
    calls = [f"{name}()" for name in names]
    program.write_text("\n".join([*readme_examples(), *calls, "print('passed')\n"]))
    said = run(bare / "python", program, cwd=tmp_path, env=own_environment(bare))
    assert said == "passed\n"


def test_the_command_prints_its_version_and_serves(bare, tmp_path):
    environment = own_environment(bare)
    assert __version__ in run(bare / "headrace", "version", cwd=tmp_path, env=environment)
    ready = tmp_path / "address"
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        node = subprocess.Popen(
            [bare / "headrace", "serve", "--listen", "127.0.0.1:0", "--ready-file", ready],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        # The line is printed when clients can connect, after the file was written.
        line = node.stdout.readline()
        assert ready.exists(), log_path.read_text()
        address = ready.read_text().strip()
        assert address in line
        environment["HEADRACE_BOOTSTRAP"] = address
        run(bare / "headrace", "produce", "greetings", input="hello\n", env=environment)
        heard = run(
            bare / "headrace", "consume", "greetings", "--from-beginning", "--max", "1",
            env=environment,
        )  # fmt: skip
        assert heard == "hello\n"
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=LIMIT_S)
    assert node.returncode == 0
    assert (tmp_path / "headrace-data" / ".kafka_cleanshutdown").exists()


def test_the_fixtures_exist_if_pytest_is_installed(bare, tmp_path):
    run(bare / "python", "-m", "pip", "install", "-q", "pytest", env=pip_environment())
    (tmp_path / "test_readme.py").write_text("\n".join(readme_examples()))
    (tmp_path / "test_fixtures.py").write_text(
        "def test_a_topic_for_each_test(headrace_broker, headrace_topic):\n"
        "    assert (headrace_broker.data / f'{headrace_topic}-0').is_dir()\n"
    )
    said = run(bare / "python", "-m", "pytest", "-q", "-W", "error", tmp_path,
               cwd=tmp_path, env=own_environment(bare))  # fmt: skip
    assert "3 passed" in said
