"""The decisions, pure: no clock, no dice, no I/O, no asyncio."""
