"""Plans a run: checks the file with Spark and the cluster, and tells what changed and what is read.

Nothing is written here, so ``headrace pipeline plan`` is this and no more.
"""

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import StructType

from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.pipeline.analysis import analyze, described
from headrace.pipeline.changes import Change, changes, declaration
from headrace.pipeline.errors import BadPipeline, RunRefused
from headrace.pipeline.graph import Node, Query, queries
from headrace.pipeline.loading import PipelineFile
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import column_conflicts, is_job_table
from headrace.pipeline.warehouse.table import Table, open_table
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.options import parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Reading(NamedTuple):
    """What a query reads of one topic."""

    query: str
    topic: str
    partitions: int
    pending: int  # records that are not processed yet


class Plan(NamedTuple):
    file: PipelineFile
    directory: PipelineDirectory
    queries: tuple[Query, ...]
    schemas: Mapping[str, StructType]  # by function
    declaration: dict[str, Any]
    is_first: bool
    changes: tuple[Change, ...]
    readings: tuple[Reading, ...]

    @property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.file.nodes}

    def counted(self, query: Query) -> set[str]:
        """The functions of no query before this one: each event and row is counted once."""
        before = self.queries[: self.queries.index(query)]
        known = {name for one in before for name in (*one.sources, *one.steps)}
        return {*query.sources, *query.steps, *query.sinks} - known

    @property
    def requires(self) -> str:
        """The strongest of what the changes require: ``reset``, ``from`` or nothing."""
        wanted = {change.requires for change in self.changes}
        return "reset" if "reset" in wanted else "from" if "from" in wanted else ""

    def check(self, settings: RunSettings) -> None:
        """Raises RunRefused if a change, a lost checkpoint or a table needs a decision."""
        self._check_owner(settings)
        if settings.reset:
            return
        refused = [change.text for change in self.changes if change.requires]
        if self.requires == "reset" or (self.requires and settings.start is None):
            cure = "--reset, which deletes its tables and computes them again"
            if self.requires == "from":
                cure = f"--from TIME, which keeps its tables and goes on from there, or {cure}"
            raise RunRefused(
                f"{self.file.name} changed since its last run: {'; '.join(refused)}. Run it with "
                f"{cure}"
            )
        if settings.start is None:
            self._check_checkpoints(settings)
        self._check_columns(settings)

    def _check_owner(self, settings: RunSettings) -> None:
        """--reset must not delete what no pipeline wrote."""
        for name, table in self._tables(settings):
            if not is_job_table(table):
                raise RunRefused(
                    f"{settings.table(name)} is a Delta table that no pipeline wrote. Move it "
                    f"away, or rename the function {name} of {self.file.name}"
                )

    def _check_columns(self, settings: RunSettings) -> None:
        for name, table in self._tables(settings):
            conflicts = column_conflicts(table, self.schemas[name])
            if conflicts:
                raise RunRefused(
                    f"{self.nodes[name].mistake(f'its rows do not fit {settings.table(name)}')}: "
                    f"{'; '.join(conflicts)}. Rename the function, or run it with --reset, which "
                    "deletes the table and computes it again"
                )

    def _tables(self, settings: RunSettings) -> Iterator[tuple[str, Table]]:
        for query in self.queries:
            for name in query.tables:
                table = open_table(settings.table(name))
                if table is not None:
                    yield name, table

    def _check_checkpoints(self, settings: RunSettings) -> None:
        known = (self.directory.recorded() or {}).get("queries", {})
        for query in self.queries:
            found, expected = self.directory.query_id(query.name), known.get(query.name)
            if expected is not None and found != expected:
                raise RunRefused(
                    f"the checkpoint of query {query.name} of {self.file.name} is "
                    f"{'missing' if found is None else 'not the one of the last run'}: "
                    f"{self.directory.checkpoint(query.name)}. The query would write its rows "
                    "again. Run it with --reset, or with --from TIME to keep its tables"
                )
            if expected is None and found is None:
                self._check_tables(query, settings)
            elif found is not None:
                self._check_progress(query, found, settings)

    def _check_progress(self, query: Query, query_id: str, settings: RunSettings) -> None:
        """A checkpoint from a backup has batches before it that the tables have already."""
        following = self.directory.last_batch(query.name) + 1
        for name in query.tables:
            written = job_table(self.nodes[name], settings).last_batch(query_id)
            if written > following:
                raise RunRefused(
                    f"{settings.table(name)} has batch {written} of query {query.name} of "
                    f"{self.file.name}, and its checkpoint ends before batch {following}: "
                    f"{self.directory.checkpoint(query.name)}. It is older than the table, and "
                    "records would be lost. Restore the newest checkpoint, or run it with "
                    "--reset, or with --from TIME to keep its tables"
                )

    def _check_tables(self, query: Query, settings: RunSettings) -> None:
        for name in query.tables:
            table = open_table(settings.table(name))
            if table is not None and table.files():
                raise RunRefused(
                    f"{settings.table(name)} already has rows, but {self.directory.path} has no "
                    "record of the run that wrote them. Run it with --reset to delete them, or "
                    "with --from TIME to keep them"
                )


def make_plan(file: PipelineFile, spark: "SparkSession", settings: RunSettings) -> Plan:
    """Raises BadPipeline with all mistakes of the file."""
    schemas = analyze(file.nodes, spark)
    made = tuple(queries(file.nodes))
    directory = PipelineDirectory(settings.state(file.name))
    columns = {name: described(schema) for name, schema in schemas.items()}
    code = {node.name: _code(node) for node in file.nodes}
    declared = declaration(file.nodes, made, columns, code)
    recorded = directory.recorded()
    cluster = Cluster(
        parse_source({**settings.source, "subscribe": "unused"}, streaming=False).client
    )
    try:
        readings = _readings(cluster, file, made, directory, settings)
    finally:
        cluster.close()
    found = changes(recorded["declaration"], declared) if recorded else []
    return Plan(
        file, directory, made, schemas, declared, recorded is None, tuple(found), tuple(readings)
    )


def _code(node: Node) -> str:
    return textwrap.dedent(inspect.getsource(node.function))


def _readings(
    cluster: Cluster,
    file: PipelineFile,
    made: Sequence[Query],
    directory: PipelineDirectory,
    settings: RunSettings,
) -> list[Reading]:
    sources = [node for node in file.nodes if node.kind == "source"]
    metadata = cluster.topics([node.declared.topic for node in sources])
    missing = [
        node.mistake(
            f"topic {node.declared.topic!r} does not exist at "
            f"{settings.source['kafka.bootstrap.servers']}"
        )
        for node in sources
        if metadata[node.declared.topic].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]
    if missing:
        raise BadPipeline(missing)
    by_name = {node.name: node for node in sources}
    found = []
    for query in made:
        done = done_offsets(directory, query)
        for name in query.sources:
            topic = by_name[name].declared.topic
            places = [TopicPartition(topic, number) for number in metadata[topic].leaders]
            first, end = (
                cluster.list_offsets(dict.fromkeys(places, which), read_committed=True)
                for which in (EARLIEST, LATEST)
            )
            pending = sum(max(0, end[p] - done.get(p, first[p])) for p in places)
            found.append(Reading(query.name, topic, len(places), pending))
    return found


def done_offsets(directory: PipelineDirectory, query: Query) -> dict[TopicPartition, int]:
    """The next offsets of a query, by its checkpoint."""
    batch = directory.last_batch(query.name)
    if batch < 0:
        return {}
    ends = directory.offsets(query.name, batch)
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in ends.items()
        if not topic.startswith("#")
        for partition, offset in partitions.items()
    }
