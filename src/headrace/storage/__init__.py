"""Files: logs and their segments, indexes, checkpoints, log directories."""
