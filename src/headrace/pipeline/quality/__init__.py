"""Whether the data is good: expectations, dead letters, and the audit."""
