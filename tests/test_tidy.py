"""The rules that a machine can check: layers, purity, first lines, sizes, words, tests.

The layer table is the one of ARCHITECTURE.md. Imports go down only; names on one line do not
import each other.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from headrace.model.loggers import LOGGERS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"

LAYERS = [
    {"model"},
    {"records", "wire"},
    {"arrow"},  # turns record batches into Arrow columns, so it stands above `records`
    {"core", "world"},
    {"storage", "coordination", "net"},
    {"client"},
    {"broker", "spark", "launch", "ship"},
    {"pipeline", "report"},
    {"cli", "console", "testing", "mirror"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Decisions know no clock, no randomness, no files, no sockets, no threads, no event loop.
IMPURE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess",
    "tempfile", "threading", "time", "uuid", "pyspark",
}  # fmt: skip
PURE_PACKAGES = {"model", "records", "wire", "arrow", "core"}
# Decisions beside the shell that carries them out. They see paths only as text.
PURE_IN = {
    "ship": "acknowledgements events formats generations routes",
    "pipeline/warehouse": "bad_share batch offsets planning rows schema",
    "pipeline": "changes definition graph",
    "pipeline/quality": "balance letters reads",
    "pipeline/generate": "block columns drawing faults machines people site traffic",
    "report": "colors numbers views",
}
PURE_MODULES = {
    f"{package}/{name}.py" for package, names in PURE_IN.items() for name in names.split()
}
# The demo and the embedded broker of the command line are a face on a face, and say so.
SIDEWAYS_ALLOWED = {("cli", "testing")}
# The Spark source and sink know a cluster only as a Kafka address, and only the demo imports them.
SPARK_MAY_IMPORT = {"model", "records", "wire", "arrow", "client"}
MAY_IMPORT_SPARK = {"spark", "pipeline", "cli"}
# The pipeline knows a cluster as the Spark source does.
PIPELINE_MAY_IMPORT = SPARK_MAY_IMPORT | {"spark"}
# What it starts are programs of their own: it knows no broker, and nothing of its doors.
LAUNCH_MAY_IMPORT = {"model", "client", "world"}
# Arrow comes with an extra, which a broker must not need.
MAY_IMPORT_ARROW = {"arrow", "spark", "pipeline"}
# LogManager and ReplicaManager are Kafka's own words; any other manager has a better name.
BANNED_NAMES = re.compile(
    r"(?<!^Log)(?<!^Replica)(?<!^Log_)(?<!^Replica_)Manager|Helper|Util|Impl\b|Info\b|Common"
)
FUNCTION_LINES_MAX = 70
PYTHON = ("src", "tests", "bench", "scripts", "examples")
REQUEST_FRAMING = {"encode_request", "parse_response_header"}
MAY_FRAME_REQUESTS = {"src/headrace/wire", "tests/unit/wire"}
CONNECTING = {"create_connection", "open_connection", "connect_ex", "sock_connect"}
MAY_CONNECT = {
    "src/headrace/world/network.py",  # dials for the client
    "src/headrace/client",
    "src/headrace/launch/zookeeper.py",  # asks ZooKeeper for its mode
    "src/headrace/cli/client.py",  # tries the port before it starts librdkafka, sends nothing
}

# Time, randomness, sockets, threads and processes reach these packages through the event loop and
# the world of the broker, so that a simulation controls them.
SIMULATED_PACKAGES = {"broker", "storage", "net", "coordination", "core"}
OF_THE_MACHINE = {
    "fcntl", "multiprocessing", "os", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "subprocess", "threading", "time", "uuid",
}  # fmt: skip
# What is left, by module and name. A line whose import is gone must go too.
STILL_OF_THE_MACHINE = {
    ("broker/random_ids.py", "random"): "the type of the generator that it is given",
    ("coordination/embedded.py", "threading"): "SQLite is used from one thread",
    ("coordination/memory.py", "threading"): "a tree that brokers in several threads share",
}

# Words that were replaced, as whole words; in names "_" separates words.
REPLACED = ["reign", "doomed", "pupil", "whoever", "anew", "volley", "chore", "complaint", "enlist"]
BANNED_WORDS = re.compile(
    rf"(?<![a-z])({'|'.join(REPLACED)}|the picture)s?(?![a-z])", re.IGNORECASE
)
# Modules without a unit test of their own, by the test that shows what they do.
TESTED_BY = {
    "unit/world/test_jobs": "world/job_host world/job_process",
    "sim/test_storage": "world/locks",
    "broker/test_acks_all": "broker/handlers/produce broker/handlers/produced",
    "broker/test_cluster": "broker/cluster_member",
    "broker/test_controller_requests": "broker/handlers/controller_requests",
    "broker/test_coordinator_shards": "broker/coordinators/deadlines broker/coordinators/host "
    "broker/coordinators/loaded_shard broker/coordinators/loading broker/coordinators/runtime "
    "broker/coordinators/shards broker/coordinators/writing",
    "broker/test_ending_transactions": "broker/coordinators/markers "
    "broker/coordinators/transaction broker/handlers/transaction_verification",
    "broker/test_failed_start_and_stop": "broker/broker broker/listeners broker/needs "
    "broker/services",
    "broker/test_migration": "broker/migration coordination/migration",
    "broker/test_kit_broker": "testing/broker testing/handle testing/runners",
    "broker/test_kit_cluster": "testing/cluster testing/cluster_brokers",
    "broker/test_kit_environments": "testing/environments",
    "broker/test_kit_faults": "testing/faults",
    "broker/test_kit_members": "testing/member_process testing/members",
    "broker/test_kit_plugin": "testing/plugin",
    "broker/test_kit_records": "testing/records",
    "broker/test_periodic_tasks": "broker/periodic",
    "broker/test_repeated_fetches": "broker/dispatch broker/handlers/fetch",
    "cli/test_cli_cluster": "cli/brokers cli/brokers_api_versions cli/cluster cli/cluster_view "
    "cli/elect_leaders cli/features cli/partition_files",
    "broker/test_replication": "broker/handlers/fetch_reads broker/replication/fetchers "
    "broker/replication/replication",
    "cli/test_cli_configs": "cli/configs",
    "cli/test_cli_errors": "cli/broker_requests cli/client cli/main cli/options cli/outcomes",
    "cli/test_cli_groups": "cli/group_requests cli/groups_reset",
    "cli/test_cli_log_dirs": "cli/log_dirs",
    "cli/test_cli_pipeline": "cli/pipeline cli/pipeline_files cli/pipeline_runs",
    "cli/test_cli_pipeline_deadletters": "cli/pipeline_deadletters pipeline/quality/dead_letters",
    "cli/test_cli_pipeline_generate": "cli/pipeline_generate",
    "cli/test_cli_records": "cli/consume cli/last_records cli/produce",
    "cli/test_cli_migrate_to_zookeeper": "cli/migrate_to_zookeeper",
    "cli/test_cli_ship": "cli/ship cli/ship_status ship/sender ship/shipper",
    "cli/test_cli_sql": "cli/sql",
    "cli/test_cli_serve": "cli/daemons cli/demo_job cli/stop cli/version",
    "cli/test_cli_tools": "cli/dump_log cli/perf cli/perf_consume cli/perf_latency "
    "cli/perf_produce cli/size",
    "cli/test_cli_topics": "cli/offsets cli/partitions cli/topics cli/topics_delete_records "
    "cli/topics_describe cli/topics_offsets",
    "cli/test_cli_up": "cli/demo_cluster cli/up launch/brokers launch/cluster",
    "cli/test_cli_reassign": "cli/reassign cli/reassignment_requests cli/reassignment_tables "
    "cli/topics_replicas",
    "cli/test_cli_decommission": "cli/brokers_decommission",
    "cli/test_cli_verify_replicas": "cli/replica_fetching cli/verify_replicas",
    "cli/test_cli_zookeeper": "cli/zookeeper cli/zookeeper_shell",
    "cli/test_cli_transactions": "cli/transaction_requests cli/transactions",
    "clients/test_consumer_protocol": "broker/handlers/consumer_groups",
    "clients/test_generated_events": "pipeline/generate/sending",
    "clients/test_groups_wire": "broker/coordinators/group",
    "clients/test_logging_handler": "ship/logging_handler",
    "clients/test_log_dirs": "broker/handlers/log_dirs broker/replication/log_dir_moves",
    "clients/test_produce_and_consume": "broker/replication/hosted_replicas "
    "broker/replication/replica_manager",
    "clients/test_testing_groups": "testing/groups",
    "clients/test_transactions_wire": "broker/handlers/producers broker/handlers/transactions",
    "faults/test_bad_input": "broker/handlers/offsets",
    "faults/test_damage": "storage/page_cache",
    "faults/test_log_dirs_away": "storage/shared_file",
    "faults/test_many_segments": "broker/handlers/records",
    "properties/test_compaction_twin": "storage/compaction/cleaned_segment storage/compaction/swap",
    "properties/test_groups_packed": "core/groups/packed",
    "properties/test_log": "storage/producer_replay storage/producer_snapshots",
    "properties/test_log_index": "storage/segment storage/segments",
    "properties/test_partition": "core/partition_effects",
    "properties/test_transactions": "core/transactions/answers core/transactions/effects "
    "core/transactions/shard",
    "report/test_daily": "report/daily report/page report/errors",
    "report/test_day": "report/day",
    "report/test_report_cli": "cli/report",
    "spark/test_batch_source": "spark/batch spark/source",
    "spark/test_exactly_once": "spark/exactly_once spark/markers spark/transaction",
    "spark/test_group_progress": "spark/group_progress",
    "spark/test_demo_pipeline": "cli/demo_pipeline pipeline/raw",
    "spark/test_jobs_activity": "pipeline/jobs/activity",
    "spark/test_jobs_feed": "pipeline/jobs/feed",
    "spark/test_jobs_operations": "pipeline/jobs/operations",
    "spark/test_jobs_ranking": "pipeline/jobs/ranking",
    "spark/test_jobs_security": "pipeline/jobs/security",
    "spark/test_permissions": "spark/cluster",
    "spark/test_pipeline_deadletters": "model/dead_letters pipeline/quality/resending "
    "pipeline/runner/isolation pipeline/runner/retries",
    "spark/test_pipeline_expectations": "pipeline/rules pipeline/runner/bad_records "
    "pipeline/runner/expectations",
    "spark/test_pipeline_runner": "pipeline/analysis pipeline/calling pipeline/tables "
    "pipeline/runner/backfill pipeline/runner/dead_letters pipeline/runner/examples "
    "pipeline/runner/fanout pipeline/runner/history pipeline/runner/inputs "
    "pipeline/runner/inspection "
    "pipeline/runner/kept "
    "pipeline/runner/planning pipeline/runner/rebuild pipeline/runner/records "
    "pipeline/runner/run "
    "pipeline/runner/settings pipeline/runner/streams",
    "spark/test_planned_functions": "pipeline/planned pipeline/runner/gathered",
    "spark/test_reading": "spark/reading spark/subscription",
    "spark/test_sink": "spark/row_encoder spark/sink",
    "spark/test_typed_values": "spark/dead_letters",
    "spark/test_warehouse": "pipeline/warehouse/load pipeline/warehouse/spark_reader "
    "pipeline/warehouse/tasks",
    "spark/test_warehouse_cli": "cli/pipeline_load cli/pipeline_status pipeline/warehouse/status",
    "test_tidy": "model/loggers",
    "unit/arrow/test_rows": "arrow/errors",
    "unit/pipeline/generate/test_block": "pipeline/events",
    "clients/test_sql_sink": "ship/sql_sink",
    "cli/test_cli_pipeline_audit": "cli/pipeline_audit",
    "cli/test_demo_live": "cli/demo_live",
    "broker/test_load_letters": "pipeline/warehouse/letter_topic",
    "broker/test_audit": "pipeline/quality/audit pipeline/quality/counting "
    "pipeline/warehouse/load_counts",
    "unit/pipeline/warehouse/test_table": "pipeline/warehouse/batch",
    "unit/broker/controller/test_cluster_controller": "broker/controller/term",
    "unit/broker/replication/test_fetcher": "broker/replication/leader_offsets",
    "unit/broker/controller/test_leaders": "broker/controller/tree_notices",
    "unit/broker/controller/test_member_controller": "broker/controller/api "
    "broker/controller/missing_topics broker/handlers/controller_apis",
    "unit/broker/controller/test_service": "broker/controller/changes "
    "broker/controller/settings_changes broker/controller/startup "
    "broker/controller/topic_requests",
    "unit/broker/controller/test_service_cluster": "broker/handlers/admin broker/handlers/cluster",
    "unit/broker/controller/test_service_topics": "broker/handlers/topics",
    "unit/broker/handlers/test_describe_configs": "model/settings/resources",
    "unit/broker/controller/test_service_metadata": "broker/handlers/metadata "
    "broker/metadata/dynamic_config",
    "unit/broker/test_member_directories": "coordination/assignments",
    "unit/broker/test_membership": "coordination/current_session",
    "unit/broker/test_error_responses": "broker/context model/errors",
    "unit/coordination/test_zookeeper": "coordination/kazoo_session",
    "unit/core/groups/classic/test_rebalance": "core/groups/classic/responses "
    "core/groups/classic/state",
    "unit/core/groups/consumer/test_reconciliation": "core/groups/consumer/members",
    "unit/core/groups/consumer/test_state": "core/groups/consumer/replay",
    "unit/core/groups/test_shard": "core/groups/group",
    "unit/model/test_config": "model/settings/given model/settings/headrace model/settings/values",
    "unit/model/test_config_files": "model/settings/descriptions model/settings/kafka "
    "model/settings/legacy_names",
    "unit/model/test_config_topics": "model/settings/group model/settings/topic",
    "unit/storage/compaction/test_log_cleaner": "storage/compaction/job",
    "unit/storage/test_checkpoint": "storage/aborted_transactions storage/leader_epoch_file "
    "storage/snapshots",
    "unit/storage/test_index_rebuild": "storage/index_repair",
    "unit/storage/test_log": "storage/append_refusals storage/roll_limits storage/segment_files",
    "unit/storage/test_log_manager": "storage/checkpointed_offsets storage/directory_names "
    "storage/log_directories "
    "storage/log_loader storage/log_startup",
    "unit/storage/test_log_move": "storage/log_copy storage/move_throttle",
    "unit/storage/test_recovery": "storage/scan",
    "unit/storage/test_time_lookup": "storage/segment_indexes",
    "unit/storage/validation/test_record_validator": "storage/validation/validation_job",
    "unit/wire/test_schema": "wire/messages/tables",
    "unit/world/test_files": "world/world",
}
PYTEST_ASSERTS = {"pytest.raises", "pytest.fail"}
STARTS_A_BROKER = {"headrace.testing.Broker", "headrace.broker.broker"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def names_in(path: Path) -> set[str]:
    """The names that a file uses, as variables or attributes."""
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Attribute, ast.Name))
    }


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_the_source_tree_is_where_these_tests_look():
    assert len(modules()) > 30


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    package = package_of(path)
    if not package:
        return
    for name in imports_of(path):
        if not name.startswith("headrace."):
            continue
        target = name.split(".")[1]
        assert target != "spark" or package in MAY_IMPORT_SPARK, f"{package}: {name}"
        assert target != "arrow" or package in MAY_IMPORT_ARROW, f"{package}: {name}"
        if target == package or target not in LEVEL or (package, target) in SIDEWAYS_ALLOWED:
            continue
        if package == "spark":
            assert target in SPARK_MAY_IMPORT, f"the Spark source and sink may not import {name}"
            continue
        assert package != "launch" or target in LAUNCH_MAY_IMPORT, f"launch may not import {name}"
        assert package != "pipeline" or target in PIPELINE_MAY_IMPORT, f"{package}: {name}"
        assert LEVEL[target] < LEVEL[package], f"{package} may not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_decisions_and_bytes_are_pure(path):
    if (
        package_of(path) not in PURE_PACKAGES
        and path.relative_to(SOURCE).as_posix() not in PURE_MODULES
    ):
        return
    impure = {name.split(".")[0] for name in imports_of(path)} & IMPURE
    assert not impure, f"a pure module imports {sorted(impure)}"


def test_the_machine_is_reached_through_the_loop_and_the_world():
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in modules()
        if package_of(path) in SIMULATED_PACKAGES
        for name in {name.split(".")[0] for name in imports_of(path)} & OF_THE_MACHINE
    }
    assert found - STILL_OF_THE_MACHINE.keys() == set(), "use the event loop or the world"
    assert STILL_OF_THE_MACHINE.keys() - found == set(), "remove these lines: the import is gone"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_owns_and_names_explain_themselves(path):
    tree = tree_of(path)
    docstring = ast.get_docstring(tree)
    assert docstring and docstring.splitlines()[0].endswith((".", ":", "?")), (
        "the first line is a sentence that says what the file owns"
    )
    assert not BANNED_NAMES.search(path.stem.title())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not BANNED_NAMES.search(node.name), node.name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


def test_there_is_one_kafka_client():
    """``wire/session.py`` frames requests, ``client/`` opens connections; others use them."""

    def is_in(name: str, places: set[str]) -> bool:
        return any(name == place or name.startswith(place + "/") for place in places)

    for path in (path for place in PYTHON for path in (ROOT / place).rglob("*.py")):
        used = names_in(path)
        name = path.relative_to(ROOT).as_posix()
        if not is_in(name, MAY_FRAME_REQUESTS):
            assert not used & REQUEST_FRAMING, f"{name}: use headrace.client or wire/session.py"
        if is_in(name, {"src"}) and not is_in(name, MAY_CONNECT):
            assert not used & CONNECTING, f"{name}: use headrace.client"


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_nothing_unfinished_is_kept():
    # Spelled in two halves, so that this file does not find itself.
    unfinished = re.compile("TO" + "DO|FIX" + "ME|X" + "XX")
    for name in tracked_files():
        if name.endswith((".py", ".c", ".md", "Makefile")) and (ROOT / name).exists():
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                assert not unfinished.search(line), f"{name}:{number}: {line.strip()}"


def test_no_source_file_is_orphaned():
    """Every module is imported by another, by name from a table, or is an entry point."""
    words = {path: set(re.findall(r"\w+", path.read_text())) for path in modules()}
    entry_points = {"__init__", "__main__", "main"}
    named = set(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text())) | entry_points
    for path in modules():
        used = any(path.stem in found for other, found in words.items() if other != path)
        assert used or path.stem in named, f"no other module uses {path.relative_to(SOURCE)}"


def test_loggers_have_stable_names():
    """A logger is named after its subject, not after its module, which may move."""
    used = set()
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if path.name == "broker_loggers.py" or not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func).endswith("getLogger"):
                assert isinstance(node.args[0], ast.Constant), f"{path}: name the logger"
                used.add(node.args[0].value)
    assert used == LOGGERS.keys()
    guide = (ROOT / "docs" / "guide.md").read_text()
    for name in LOGGERS:
        assert f"`{name}`" in guide, f"docs/guide.md does not list {name}"


# --- words


def test_replaced_words_stay_out_of_the_source():
    for path in modules():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not BANNED_WORDS.search(line), f"{path}:{number}: {line.strip()}"


def test_replaced_words_stay_out_of_the_pages():
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    found = {
        page.relative_to(ROOT).as_posix() for page in pages if BANNED_WORDS.search(page.read_text())
    }
    assert found == set(), "docs use Kafka's words"


def test_replaced_words_stay_out_of_the_names_of_tests():
    for path in (ROOT / "tests").rglob("*.py"):
        assert not BANNED_WORDS.search(path.stem), path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                assert not BANNED_WORDS.search(node.name), f"{path}: {node.name}"


# --- tests


def files_of_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def module_of(test: Path) -> Path | None:
    """``unit/X/test_Y_subject.py`` belongs to ``X/Y.py``."""
    place = SOURCE / test.parent.relative_to(ROOT / "tests" / "unit")
    words = test.stem.split("_")[1:]
    names = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return next((place / f"{name}.py" for name in names if (place / f"{name}.py").exists()), None)


def unit_tests() -> list[Path]:
    return [path for path in files_of_tests() if path.is_relative_to(ROOT / "tests" / "unit")]


def test_a_unit_test_belongs_to_a_module():
    assert [str(path) for path in unit_tests() if module_of(path) is None] == []


def test_a_unit_test_starts_no_broker():
    for path in unit_tests():
        assert not STARTS_A_BROKER & set(imports_of(path)), f"{path} belongs to tests/broker"


def test_every_module_has_a_test():
    own = {module_of(path) for path in unit_tests()}
    listed = [SOURCE / f"{name}.py" for names in TESTED_BY.values() for name in names.split()]
    assert len(listed) == len(set(listed)), "one test owns a module"
    assert [str(path) for path in listed if not path.exists() or path in own] == []
    assert [test for test in TESTED_BY if not (ROOT / "tests" / f"{test}.py").exists()] == []
    untested = set(modules()) - own - set(listed)
    left = [str(path) for path in untested if path.stem not in ("__init__", "__main__")]
    assert left == [], "write a unit test, or name the test that owns the module"


@cache
def asserts(tree: ast.AST) -> bool:
    """Whether there is an assertion, or something else that fails a test."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PYTEST_ASSERTS:
            return True
        if isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node):
            return True
    return False


@cache
def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def test_every_test_asserts_something():
    for path in files_of_tests():
        failing = failing_functions(path)
        for function in functions_of(path):
            if function.name.startswith("test_"):
                assert function.name in failing, f"{path}: {function.name} asserts nothing"


def failing_functions(path: Path) -> set[str]:
    """Functions that can fail a test: of this file, of files it imports, of a conftest."""
    imported = [ROOT / f"{name.replace('.', '/')}.py" for name in imports_of(path)]
    helpers = {path, *imported, *(parent / "conftest.py" for parent in path.parents)}
    functions = [f for file in helpers if file.exists() for f in functions_of(file)]
    failing = {function.name for function in functions if asserts(function)}
    while more := {f.name for f in functions if called_in(f) & failing} - failing:
        failing |= more
    return failing


@cache
def called_in(function: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls}


def test_tests_look_inside_a_broker_through_one_door():
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name == "inside.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                chain = ast.unparse(node)
                poked = re.search(r"\brunner\.(node|loop)\b|\._[a-z]\w*\._[a-z]", chain)
                assert not poked, f"{path}:{node.lineno}: {chain}; use tests/fakes/inside.py"


# Names with an underscore that are not ours: of other packages, or of named tuples.
FOREIGN = {"KafkaError", "TaskContext", "asyncio", "consumer", "spark"}
OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
# Where a test needs to see behind the door; no others may come.
PRIVATE_NAMES = {
    "broker/test_settings_cluster.py": {"_current"},
    "fakes/inside.py": {"_brokers"},  # the one door to the brokers of a cluster
    "sim/loop.py": {"_run", "_scheduled"},  # a loop of asyncio that keeps its own time
    "unit/ship/test_stream.py": {"_WAIT_S"},
    "unit/pipeline/warehouse/test_compaction.py": {"_copy"},
    "unit/pipeline/warehouse/test_files.py": {"_ROW_GROUP_BYTES", "_WAITING_BYTES_MAX"},
    "unit/pipeline/warehouse/test_table.py": {"_append"},
}


def test_tests_use_no_private_names():
    for path in (ROOT / "tests").rglob("*.py"):
        allowed = PRIVATE_NAMES.get(path.relative_to(ROOT / "tests").as_posix(), set())
        for node in ast.walk(tree_of(path)):
            name = private_name(node)
            assert name is None or name in allowed, f"{path}:{node.lineno}: {name}"


def private_name(node: ast.AST) -> str | None:
    """A private name of another object that is read, or replaced by a monkeypatch."""
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value).rpartition(".")[2]
        if owner in FOREIGN | {"self", "cls", "super()", "os", "sys"} | OF_TUPLES:
            return None
        name = node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
        strings = [each.value for each in node.args if isinstance(each, ast.Constant)]
        name = next((each for each in strings if isinstance(each, str)), "")
    else:
        return None
    is_private = name.startswith("_") and not name.startswith("__") and name not in OF_TUPLES
    return name if is_private else None
