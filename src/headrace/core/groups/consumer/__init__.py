"""Groups whose coordinator assigns partitions: the consumer protocol of KIP-848.

group.py            ConsumerGroup: satisfies ``groups.group.Group``
state.py            ConsumerState: what the log holds of a group, and its records
members.py          one member, and its records
replay.py           from records to groups
heartbeat.py        ConsumerGroupHeartbeat
describe.py         ConsumerGroupDescribe
changes.py          the steps that turn one event into records
assignors.py        which member gets which partitions
patterns.py         topics by regular expression
reconciliation.py   a member's way from its assignment to its target
departure.py        how members leave, or are fenced
classic_members.py  members that still speak the classic protocol
"""
