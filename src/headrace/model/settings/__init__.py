"""Settings: tables of Kafka's and ours, parsing, checks, descriptions."""
