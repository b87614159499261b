"""The Spark source and sink, which know a cluster only as a Kafka address."""
