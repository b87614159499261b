"""The door to files: segments, indexes, checkpoints, log directories."""
