"""Connections of clients. No other package of the broker has them."""
