"""Exactly-once writes: one transaction makes all rows of a batch visible, or none.

Only the driver runs the transaction. Tasks encode their rows and send nothing, or stage them in a
topic of their own. ``commit_batch`` on the driver takes these steps, and may die after any:

    1  InitProducerId for the query's transactional ID. This fences earlier runs, and ends a
       transaction that an earlier run left open. From here on no other run can commit.
    2  Read the query's marker. If it names this batch or a later batch, all rows are visible
       already: done.
    3  Add the partitions, produce every batch restamped for this producer, and the marker.
    4  EndTxn. If the response is lost, send it again: the coordinator answers a repeated request
       in the same way.

If the driver dies before step 4, the transaction stays open and step 1 of the next run aborts
it; readers of committed records see none of it. If the driver dies after step 4, but before Spark
has recorded the batch as done, Spark runs the batch again and step 2 finds the marker. The
marker must be read after step 1: before it, an earlier run might still commit.
"""

from collections.abc import Callable, Iterable

from headrace.arrow.encoding import EncodedBatch
from headrace.spark.cluster import Cluster
from headrace.spark.markers import Markers
from headrace.spark.options import SinkOptions
from headrace.spark.transaction import Transaction


def commit_batch(
    cluster: Cluster,
    options: SinkOptions,
    batches: Callable[[], Iterable[EncodedBatch]],
    query_id: str,
    batch_id: int | None,
) -> bool:
    """Make the batches visible, all or none; False if an earlier run has done so.

    A write without a batch ID has no marker: it never runs again under the same query ID.
    """
    transaction = Transaction(cluster, f"headrace-{query_id}", options)
    marker: list[EncodedBatch] = []
    if batch_id is not None:
        markers = Markers(cluster, options.marker_topic, query_id)
        done = markers.last_batch(options.transaction_timeout_ms + options.block_ms_max)
        if done is not None and done >= batch_id:
            return False
        marker.append(markers.record(batch_id))
    try:
        transaction.write(batches())
        transaction.write(marker)
        transaction.flush()
    except BaseException:
        transaction.abort()
        raise
    # From here on the outcome may be unknown, and an abort could follow a commit that succeeded.
    # Only the next run, which reads the marker, may decide.
    transaction.commit()
    return True
