"""Topics into Delta tables: what to load, the door to a table, tasks on Spark, maintenance."""
