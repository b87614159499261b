"""The data pipeline on Spark: sources and sinks that know the cluster only as a Kafka address."""
