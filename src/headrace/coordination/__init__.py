"""The door to cluster state: a small tree of versioned nodes."""
