"""Log compaction: keep the newest record of each key."""
