"""Runs pipeline files: as streams, once over what the topics hold, or as one batch."""
