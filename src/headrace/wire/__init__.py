"""The Kafka protocol as bytes: messages, codecs, headers, APIs. No sockets."""
