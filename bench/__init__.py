"""Every figure that Headrace claims, measured together with Apache Kafka in the same run."""
