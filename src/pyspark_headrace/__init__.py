"""Where PySpark finds ``format("headrace")`` automatically, with nothing to register.

PySpark imports every top-level module whose name begins with ``pyspark_``, in each session that
looks up a Python source. So this module imports nothing heavy and never fails: without PySpark
there is no source, and a source loads what it needs when it is used.
"""

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    pass
else:
    if TYPE_CHECKING:
        from pyspark.sql import SparkSession
        from pyspark.sql.datasource import (
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            DataSourceWriter,
        )
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """Topics of a Kafka-compatible cluster; docs/spark.md lists the options."""

        @classmethod
        def name(cls) -> str:
            return "headrace"

        def schema(self) -> "StructType":
            from headrace.spark import source

            return source.schema_of(self.options)

        def reader(self, schema: "StructType") -> "DataSourceReader":
            from headrace.spark import source

            return source.batch_reader(self.options, schema)

        def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
            from headrace.spark import source

            return source.stream_reader(self.options, schema)

        def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
            from headrace.spark import sink

            return sink.batch_writer(self.options, schema, overwrite)

        def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
            from headrace.spark import sink

            return sink.stream_writer(self.options, schema, overwrite)

    def activate(spark: "SparkSession") -> None:
        """Let the calling thread write with ``df.write.format("headrace")``.

        Spark looks up a Python sink in the active session of the thread, and a thread that did
        not start the session has none: it gets DATA_SOURCE_NOT_FOUND, before any code of this
        package runs. Creating a frame is the public way to make the session active.
        """
        spark.createDataFrame([], "unused INT")
