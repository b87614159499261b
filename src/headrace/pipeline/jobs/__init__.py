"""The pipeline files that Headrace ships: activity, feed, operations, ranking and security."""
