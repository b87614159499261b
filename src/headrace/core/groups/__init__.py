"""Groups and the offsets they commit: the machines behind ``__consumer_offsets``.

    shard.py            GroupShard: all groups of one partition of the topic; dispatches by kind
    group.py            what the shard needs from every kind of group (``Group``)
    classic/            groups whose members assign among themselves: JoinGroup, SyncGroup
    consumer/           groups whose coordinator assigns (KIP-848): ConsumerGroupHeartbeat
    conversion.py       groups that change their protocol
    offsets.py          committed and pending offsets, of groups of any kind
    offset_commit.py    OffsetCommit, TxnOffsetCommit
    packed.py           commits of many partitions, encoded in one piece
    offset_fetch.py     OffsetFetch
    offset_deletion.py  OffsetDelete, deleted topics, expiration

How a kind of group plugs in:

* Its class satisfies ``group.Group`` and is stored in ``GroupShard.groups`` under its group id. It
  gets the shard when it is created: ``shard.cluster`` has the current settings and metadata,
  ``shard.timers`` takes deadlines (``timers.set(Timer(group_id, kind, subject), at)``). When a
  deadline expires, the shard calls ``group.expired(timer, now)``, one timer per ``tick``.
* Each of its records has a type, the number in the first two bytes of the key. A module of the
  kind maps types to replay functions, and ``shard.py`` adds that table to its own. Such a function
  gets (shard, key, value) as stored in the log. It puts the group into ``shard.groups`` if it is
  new, and calls ``shard.remove(group_id)`` after the group's last record.
* Its own requests are functions that take the shard and return an Outcome. A handler calls them
  through the group coordinator: ``broker.groups.ask(group_id, lambda shard, ticket, now:
  heartbeat(shard, ticket, ...))``. They find the group with ``shard.groups.get(group_id)``,
  whatever its kind, and convert it if possible.
* The classic requests reach it through ``Group.join``, ``sync``, ``heartbeat`` and ``leave`` (a
  classic member in a consumer group). The shard serves offsets, lists and deletion, and asks the
  group only what ``Group`` names.
"""
