"""A small Kafka client: an asyncio and a blocking door over the session in ``headrace.wire``."""
