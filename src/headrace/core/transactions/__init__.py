"""Transactions: the machine behind ``__transaction_state``.

    transaction.py   one transactional id as its last record has it, and that record's bytes
    shard.py         TransactionShard: all transactional ids of one partition of the topic
    answers.py       what the shard says, as messages
    listing.py       which transactions a ListTransactions asks for

A transaction ends in three steps, each of which survives a stop:

    1. PrepareCommit or PrepareAbort is appended      from here on the end is decided
    2. a marker goes to every partition that took part (the shell does it: ``WriteMarkers``)
    3. CompleteCommit or CompleteAbort is appended    the producer may begin the next one

A shard that loads a transaction in state 1 goes on with 2: markers may then be written twice,
which the partitions tell apart by the producer's epoch.
"""
