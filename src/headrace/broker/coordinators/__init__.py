"""Group and transaction coordinators: shards loaded from internal topics."""
