"""What a transaction shard needs from its surroundings: markers written, producer ids drawn."""

from typing import NamedTuple

from headrace.model.ids import ProducerEpoch, ProducerId, TopicPartition


class WriteMarkers(NamedTuple):
    """Effect: end this transaction in these partitions, then call ``markers.answered``."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class DrawProducerId(NamedTuple):
    """Effect: a timeout waits for a fresh producer id (``TransactionShard.producer_id_drawn``)."""


class NeedsProducerId(Exception):
    """The request needs a new producer id: get one, and ask again."""
