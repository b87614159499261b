"""Transactions: the machine behind ``__transaction_state``.

    shard.py             TransactionShard: all transactional ids of one partition of the topic
    transaction.py       one transactional id as its last record has it, and that record's bytes
    init_producer_id.py  InitProducerId: hand out a producer id and epoch, fence the previous owner
    add_partitions.py    AddPartitionsToTxn, AddOffsetsToTxn, and partitions that Produce adds
    end_txn.py           EndTxn: decide to commit or abort
    markers.py           the markers that end a transaction in its partitions
    expiration.py        transactions that time out, transactional ids that expire
    effects.py           what the shard needs from its surroundings
    listing.py           the filters of ListTransactions
    answers.py           answers of the shard, as messages

A transaction ends in three steps. Each of them survives a restart:

    1. append PrepareCommit or PrepareAbort      from here on the end is decided
    2. write a marker to every partition of the transaction (effect ``WriteMarkers``)
    3. append CompleteCommit or CompleteAbort    the producer may begin its next transaction

A shard that loads a transaction after step 1 continues with step 2. A marker may then be written
twice; partitions detect that by the producer epoch.
"""
