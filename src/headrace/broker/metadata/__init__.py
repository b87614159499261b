"""What every broker knows of the cluster: metadata and dynamic configuration."""
