"""Functions that Spark plans once, and computes for the rows of every batch.

Most batches are small, and Spark takes longer to plan a function than to compute it. The plan of
one batch fits the next one, if nothing but the rows of its inputs differs. So the inputs are RDDs
whose rows can be replaced, and a function is planned again only if it returns other text, or a
frame that means something else, than for the batch before.

Everything runs in one task: a small batch has no use for more. No rows need to be exchanged then,
so the RDDs of a plan keep nothing of a batch, and the next one can use them too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A function of frames, by name; text is SQL over them.
Function = Callable[..., DataFrame | str]

_IN_ONE_TASK = {
    # A copy of an adaptive plan would have the rows that the first batch exchanged.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Spark does not know the size of an RDD, and would rather exchange the rows of both sides of a
    # join than join large ones in one task.
    "spark.sql.maxSinglePartitionBytes": str(2**63 - 1),
    # A broadcast is a job of its own, and saves nothing where no rows are exchanged.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    # A copy of the plan would have the rows that the first batch exchanged.
    "spark.sql.exchange.reuse": "false",
    # It makes subqueries of aggregates, and a plan with subqueries cannot be used again.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.MergeSubplans",
}
# Leaves of a plan that are the same for every batch. Files, for example, are not.
_LEAVES = {"LogicalRDD", "OneRowRelation", "LocalRelation", "Range", "CTERelationRef"}
_CATALYST = "org.apache.spark.sql.catalyst"
_EXECUTION = "org.apache.spark.sql.execution"


class Functions(Protocol):
    """Computes functions of frames."""

    def call(
        self,
        name: str,
        function: Function,
        inputs: Mapping[str, DataFrame],
        *,
        version: Hashable = None,
        tasks: int = 1,
    ) -> DataFrame:
        """The rows of a function, computed when they are needed, but before the next call of it.

        A function with a ``version`` always returns the same, as long as its version is the same.
        ``tasks`` is 1, or 0 for as many as the inputs have.
        """

    def release(self) -> None:
        """All rows of the batch are computed."""


class PlainFunctions:
    """Plans every call, as Spark does."""

    def call(
        self,
        name: str,
        function: Function,
        inputs: Mapping[str, DataFrame],
        *,
        version: Hashable = None,
        tasks: int = 1,
    ) -> DataFrame:
        made = function(**inputs)
        return _sql(made, inputs) if isinstance(made, str) else made

    def release(self) -> None:
        """Nothing is kept."""


class PlannedFunctions:
    """Plans each function once. For one thread."""

    def __init__(self, spark: "SparkSession") -> None:
        # With its own settings and views; rows go from session to session.
        self._session = spark.newSession()
        for name, value in _settings(spark).items():
            self._session.conf.set(name, value)
        self._planned: dict[str, _Planned] = {}
        self._kept: list[Any] = []

    def call(
        self,
        name: str,
        function: Function,
        inputs: Mapping[str, DataFrame],
        *,
        version: Hashable = None,
        tasks: int = 1,
    ) -> DataFrame:
        planned = self._planned.get(name)
        if planned is None or not planned.fits(inputs):
            planned = self._planned[name] = _Planned(self._session, inputs, tasks)
        return planned.rows(function, inputs, version, self._keep)

    def release(self) -> None:
        for rdd in self._kept:
            rdd.unpersist(False)
        self._kept.clear()

    def _keep(self, frame: DataFrame) -> Any:
        rdd = kept_rdd(frame)
        self._kept.append(rdd)
        return rdd


class _Planned:
    def __init__(
        self, session: "SparkSession", inputs: Mapping[str, DataFrame], tasks: int
    ) -> None:
        self._jvm: Any = session.sparkContext._jvm
        self._tasks = tasks
        self._inputs = {name: _Input(session, frame, tasks) for name, frame in inputs.items()}
        self._frames = {name: one.frame for name, one in self._inputs.items()}
        self._made: DataFrame | str | None = None
        self._plan: Any = None
        self._rdds: _Rdds | None = None
        self._read_again: list[str] = []  # inputs that the plan reads more than once
        self._schema: Any = None
        self._is_reusable = False
        self._version: Hashable = None

    def fits(self, inputs: Mapping[str, DataFrame]) -> bool:
        return self._inputs.keys() == inputs.keys() and all(
            self._inputs[name].fits(frame) for name, frame in inputs.items()
        )

    def rows(
        self,
        function: Function,
        inputs: Mapping[str, DataFrame],
        version: Hashable,
        keep: Callable[[DataFrame], Any],
    ) -> DataFrame:
        for name, frame in inputs.items():
            self._inputs[name].replace(rdd_of(frame))
        if not self._is_reusable or version is None or version != self._version:
            made = function(**self._frames)
            for name, frame in self._frames.items():
                if made is frame:
                    return inputs[name]
            if not (self._is_reusable and self._is_same(made)):
                self._plan_again(made)
            self._version = version
        for name in self._read_again:
            # Its function would compute the rows again for every use.
            if _is_computed(inputs[name]):
                self._inputs[name].replace(keep(inputs[name]))
        session = next(iter(inputs.values())).sparkSession
        if self._rdds is not None:
            return frame_of(session, self._rdds.of_next_batch(), self._schema)
        # A copy of a plan has not exchanged any rows yet.
        return frame_of(session, self._plan.clone().execute(), self._schema)

    def _plan_again(self, made: DataFrame | str) -> None:
        frame = _sql(made, self._frames) if isinstance(made, str) else made
        execution = frame._jdf.queryExecution()
        self._plan, self._schema = execution.executedPlan(), execution.analyzed().schema()
        self._is_reusable = _is_reusable(frame)
        self._rdds = None
        self._made = made
        read = Counter(
            leaf.rdd().id()
            for leaf in _listed(self._plan.collectLeaves())
            if leaf.getClass().getSimpleName() == "RDDScanExec"
        )
        self._read_again = [name for name, one in self._inputs.items() if read[one.rdd.id()] > 1]
        if self._is_reusable and self._tasks == 1 and not _broadcasts(self._plan):
            self._plan = _without_exchanges(self._plan, self._jvm)
            inputs = [one.rdd for one in self._inputs.values()]
            self._rdds = _Rdds.of(self._plan.clone().execute(), inputs, self._jvm)

    def _is_same(self, made: DataFrame | str) -> bool:
        if isinstance(made, str) or isinstance(self._made, str):
            return made == self._made
        assert self._made is not None
        return made is self._made or bool(made._jdf.sameSemantics(self._made._jdf))


class _Rdds:
    """The RDDs of a plan, which exchange no rows: for all batches."""

    def __init__(self, rdd: Any, steps: Mapping[int, Any], jvm: Any) -> None:
        self._rdd = rdd
        self._steps = list(steps.values())
        rdd_class = jvm.java.lang.Class.forName("org.apache.spark.rdd.RDD")
        self._partitions = rdd_class.getDeclaredField("partitions_")
        self._partitions.setAccessible(True)

    @classmethod
    def of(cls, rdd: Any, inputs: Collection[Any], jvm: Any) -> "_Rdds | None":
        """None for RDDs that keep exchanged rows."""
        ends = {one.id() for one in inputs}
        steps: dict[int, Any] = {}
        todo = [rdd]
        while todo:
            one = todo.pop()
            if one.id() in ends or one.id() in steps:
                continue
            steps[one.id()] = one
            for dependency in _listed(one.dependencies()):
                if dependency.getClass().getSimpleName() == "ShuffleDependency":
                    return None
                todo.append(dependency.rdd())
        return cls(rdd, steps, jvm)

    def of_next_batch(self) -> Any:
        """The RDD of the result; it asks its inputs again for their partitions."""
        for one in self._steps:
            self._partitions.set(one, None)
        return self._rdd


class _Input:
    """An input of a function: a frame, whose rows are replaced for every batch."""

    def __init__(self, session: "SparkSession", frame: DataFrame, tasks: int) -> None:
        context = session.sparkContext
        jvm: Any = context._jvm
        row_class = jvm.java.lang.Class.forName(f"{_CATALYST}.InternalRow")
        tag = jvm.scala.reflect.ClassTag.apply(row_class)
        self._seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._list = jvm.java.util.ArrayList
        # Plans for one task expect one partition, also of a frame without any.
        nothing = self._seq(self._list())
        self._always = [context._jsc.sc().parallelize(nothing, tasks, tag)] if tasks else []
        # This RDD is chosen for its setter of the RDDs that it joins.
        self.rdd = jvm.org.apache.spark.rdd.UnionRDD(context._jsc.sc(), self._rdds(), tag)
        self._schema = _nullable(frame)
        leaf = frame_of(session, self.rdd, self._schema)
        self.frame = leaf.coalesce(tasks) if tasks else leaf

    def fits(self, frame: DataFrame) -> bool:
        return bool(_nullable(frame).equals(self._schema))

    def replace(self, rdd: Any) -> None:
        # As after a checkpoint, the RDD asks again for its partitions and what they depend on.
        self.rdd.markCheckpointed()
        getattr(self.rdd, "rdds_$eq")(self._rdds(rdd))

    def _rdds(self, *rdds: Any) -> Any:
        found = self._list()
        for one in (*rdds, *self._always):
            found.add(one)
        return self._seq(found)


class _Leaf(ClassicFrame):
    """A frame of rows in Spark's own format; its plan is one leaf."""

    def __init__(self, session: "SparkSession", rdd: Any, schema: Any) -> None:
        super().__init__(
            session._jsparkSession.internalCreateDataFrame(rdd, schema, False), session
        )
        self.leaf_rdd = rdd


def frame_of(session: "SparkSession", rdd: Any, schema: Any) -> DataFrame:
    """A frame of these rows, in Spark's own format."""
    return _Leaf(session, rdd, schema)


def rdd_of(frame: DataFrame) -> Any:
    """The rows of a frame, in Spark's own format. Planning a leaf would only add a copy of them."""
    return frame.leaf_rdd if isinstance(frame, _Leaf) else frame._jdf.queryExecution().toRdd()


def _is_computed(frame: DataFrame) -> bool:
    """Whether every use of a frame computes its rows again: by a function, and not kept."""
    return isinstance(frame, _Leaf) and not frame.leaf_rdd.getStorageLevel().isValid()


def kept_rdd(frame: DataFrame) -> Any:
    """The rows of a frame, which stay in memory or on disk once they are computed.

    Spark uses one object for all rows of a task, and only a local checkpoint copies them. It would
    also forget how to compute them, and the loss of an executor would end the query.
    """
    rdd = frame._jdf.localCheckpoint(False).queryExecution().analyzed().rdd()
    jvm: Any = frame.sparkSession.sparkContext._jvm
    getattr(rdd, "checkpointData_$eq")(jvm.scala.Option.empty())
    return rdd


def _settings(spark: "SparkSession") -> dict[str, str]:
    names = (
        "spark.sql.session.timeZone",
        "spark.sql.codegen.wholeStage",
        "spark.sql.codegen.factoryMode",
        "spark.sql.ansi.enabled",
    )
    return {**{name: spark.conf.get(name) or "" for name in names}, **_IN_ONE_TASK}


def _nullable(frame: DataFrame) -> Any:
    """The schema of a frame, in Java, with fields that may all be null: batches may differ."""
    return frame._jdf.schema().asNullable()


def _is_reusable(frame: DataFrame) -> bool:
    """Whether the plan gives the right rows for other inputs, and at another time."""
    execution = frame._jdf.queryExecution()
    analyzed = execution.analyzed()
    jvm: Any = frame.sparkSession.sparkContext._jvm
    now = getattr(jvm, f"{_CATALYST}.trees.TreePattern").CURRENT_LIKE()
    if analyzed.containsPattern(now) or not analyzed.deterministic():
        return False
    if not execution.executedPlan().subqueriesAll().isEmpty():
        return False  # a copy of the plan would have the results of the first batch
    kinds = {leaf.getClass().getSimpleName() for leaf in _listed(analyzed.collectLeaves())}
    return kinds <= _LEAVES


def _without_exchanges(plan: Any, jvm: Any) -> Any:
    """The plan with all rows of each exchange into one partition in the task that needs them."""
    children = [_without_exchanges(child, jvm) for child in _listed(plan.children())]
    if children:
        seq = jvm.java.util.ArrayList()
        for child in children:
            seq.add(child)
        plan = plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(seq))
    if plan.getClass().getSimpleName() != "ShuffleExchangeExec":
        return plan
    if plan.outputPartitioning().numPartitions() > 1:
        return plan
    return getattr(jvm, f"{_EXECUTION}.CoalesceExec")(1, children[0])


def _broadcasts(plan: Any) -> bool:
    """Whether RDDs of the plan would have the rows that the first batch broadcasts."""
    is_broadcast = plan.getClass().getSimpleName() == "BroadcastExchangeExec"
    return is_broadcast or any(map(_broadcasts, _listed(plan.children())))


def _listed(seq: Any) -> list[Any]:
    return [seq.apply(n) for n in range(seq.size())]


def _sql(text: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    spark = next(iter(inputs.values())).sparkSession
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(text, None, **inputs) if "{" in text else spark.sql(text)
