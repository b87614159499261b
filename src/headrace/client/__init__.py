"""A small Kafka client, for asyncio and for blocking code, over the session in ``wire``."""
