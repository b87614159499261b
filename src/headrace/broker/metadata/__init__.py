"""What every broker knows about the cluster: metadata and dynamic configuration."""
