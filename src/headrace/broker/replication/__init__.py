"""The partitions that this broker hosts, and what it does as leader or follower."""
