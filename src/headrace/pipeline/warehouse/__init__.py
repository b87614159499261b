"""Topics into Delta tables: what to load, commits to a table, tasks on Spark, maintenance."""
