"""Cluster state: a small tree of versioned nodes, as in ZooKeeper, and access to it."""
