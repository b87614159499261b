"""Kafka's requests and responses as bytes. Pure."""
