"""Record batches to Arrow columns and back, without Spark and without I/O."""
