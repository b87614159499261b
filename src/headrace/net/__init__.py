"""Client connections: listeners, frames, and responses in order."""
