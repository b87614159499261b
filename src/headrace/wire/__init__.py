"""Kafka's protocol as bytes: messages, their codecs, headers and the list of APIs. No sockets."""
