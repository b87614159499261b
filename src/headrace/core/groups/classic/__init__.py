"""Groups whose members assign partitions among themselves: the classic protocol.

    group.py      ClassicGroup: satisfies ``groups.group.Group``
    state.py      ClassicState: members, votes and parked requests; the states of a group
    members.py    one member, and the topics that it subscribes to
    join.py       JoinGroup
    rebalance.py  from the first join of a rebalance to the next generation
    sync.py       SyncGroup
    departure.py  LeaveGroup, and members whose timeout expired
    records.py    the GroupMetadata record
    responses.py  refusals and answers as messages

A rebalance without failures:

    members     JoinGroup ───►  parked until all members have joined      (Preparing)
    group       generation + 1, the protocol with the most votes, a leader
                ◄───  answers all joins; the leader gets every subscription
    members     SyncGroup ───►  parked until the leader's arrives         (Completing)
    leader      SyncGroup with the assignments ───►  one GroupMetadata record
                ◄───  answers all syncs, each with its own assignment     (Stable)

The log holds the group as of the last completed rebalance, in one GroupMetadata record. The
running group starts from that record and is ahead of it during a rebalance; that part is soft.
A coordinator that loads the group knows the last completed generation. It rejects members of an
unfinished generation (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID), and they join again.
"""
