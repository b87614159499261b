"""Validation of produced records, away from the event loop."""
