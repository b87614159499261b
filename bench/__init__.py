"""Every figure that Headrace claims, measured beside Apache Kafka in the same run."""
