"""From topics to tables: the warehouse load, on top of the Spark source and sink."""
