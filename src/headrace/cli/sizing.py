"""How large a cluster must be for a load: partitions, brokers, memory, disk and network. Pure.

The costs are measured (docs/sizing.md says where). A broker uses one core: several brokers on one
machine use several cores.
"""

from math import ceil
from typing import NamedTuple

# Processor seconds per GB of the broker: a record that its leader receives (small batches, as
# librdkafka sends them), a copy to one more replica (both ends), and one reader.
LEADER_S_PER_GB = 0.60
REPLICA_S_PER_GB = 1.44
READER_S_PER_GB = 0.30
BROKER_MB = 35.0
PARTITION_MB = 0.01
# The share of a core that a broker should use in the mean, so that peaks and catching up fit.
CORE_SHARE_MAX = 0.5
# A reader that is up to half a minute behind is served from memory.
CACHED_SECONDS = 30
DISK_FULL_MAX = 0.75
SEGMENT_MB = 1074.0
# Spreads the leaders evenly, also after a broker has left.
PARTITIONS_PER_BROKER_MIN = 2


class Load(NamedTuple):
    """What the cluster has to carry. Rates are in MB/s (10^6 bytes), after compression."""

    rate_in: float
    retention_s: float
    replicas: int = 3
    readers: int = 1  # groups that read everything
    consumer_rate: float = 10.0  # of one consumer, which reads one partition or more


class Sizing(NamedTuple):
    """Sizes are in MB, rates in MB/s; all but the first three are of one broker."""

    brokers: int
    partitions: int
    disk_total: float
    core_share: float
    memory: float
    page_cache: float
    disk: float
    network_in: float
    network_out: float


def size_cluster(load: Load) -> Sizing:
    cost = LEADER_S_PER_GB + REPLICA_S_PER_GB * (load.replicas - 1) + READER_S_PER_GB * load.readers
    cores = load.rate_in / 1000 * cost
    # One broker may be down, unless there is only one replica anyway.
    spare = 1 if load.replicas > 1 else 0
    brokers = max(ceil(cores / CORE_SHARE_MAX) + spare, load.replicas)
    partitions = max(ceil(load.rate_in / load.consumer_rate), PARTITIONS_PER_BROKER_MIN * brokers)
    partitions = ceil(partitions / brokers) * brokers
    hosted = partitions * load.replicas / brokers
    stored = load.rate_in * load.replicas * load.retention_s
    # Retention deletes whole segments, so each replica keeps up to one more.
    segments = SEGMENT_MB * partitions * load.replicas
    disk_total = (stored + min(segments, stored)) / DISK_FULL_MAX
    return Sizing(
        brokers,
        partitions,
        disk_total,
        cores / brokers,
        BROKER_MB + PARTITION_MB * hosted,
        load.rate_in * load.replicas * CACHED_SECONDS / brokers,
        disk_total / brokers,
        load.rate_in * load.replicas / brokers,
        load.rate_in * (load.replicas - 1 + load.readers) / brokers,
    )
