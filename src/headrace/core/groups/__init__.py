"""Groups and the offsets they commit: the machines behind ``__consumer_offsets``.

    shard.py      GroupShard: all groups of one partition of the topic; dispatches by kind
    group.py      what every kind of group must answer (``Group``), and the names they share
    classic/      groups whose members assign among themselves: JoinGroup, SyncGroup, Heartbeat
    consumer/     groups whose coordinator assigns (KIP-848): ConsumerGroupHeartbeat
    conversion.py groups that change their protocol
    offsets.py    committed and pending offsets, of groups of any kind; with
                  packed.py           commits of many partitions, made in one piece

How a kind of group plugs in:

* Its class satisfies ``group.Group`` and lives in ``GroupShard.groups`` under its group id. It is
  made with the shard as its surroundings: ``shard.cluster`` (settings and metadata, as of now) and
  ``shard.timers`` (``timers.set(Timer(group_id, kind, subject), at)``; when the time has come the
  shard calls ``group.expired(timer, now)``, one timer per ``tick``).
* Each of its records has a type, the number in the first two bytes of the key. The module names
  the functions that replay them in ``REPLAYERS``, by type, and ``shard.py`` adds that table to
  its own. Such a function gets (shard, key, value) as they lie in the log, without the two bytes
  taken off. It puts the group into ``shard.groups`` if it is not there, and calls
  ``shard.remove(group_id)`` when the group's last record is gone.
* Its own requests are methods of the group or functions of its module that take the shard and
  return an Outcome; a handler reaches them through ``broker.coordinators.group.ask(group_id,
  lambda shard, ticket, now: consumer.heartbeat(shard, ticket, context, request, now))``. They
  find the group with ``shard.groups.get(group_id)``, whatever its kind, and convert it if the
  kinds can be changed.
* The classic requests come to it through ``Group.join``, ``sync``, ``heartbeat`` and ``leave``
  (a classic member in a group of the new protocol). Offsets, listing and deletion are the shard's
  and ask the group only what ``Group`` names.
* ``ClassicGroup(shard, group_id)`` is an empty classic group; ``members``, ``generation``,
  ``protocol_name``, ``leader_id`` are its running state, and the replay of a GroupMetadata record
  sets all of them.
"""
