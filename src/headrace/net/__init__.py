"""Sockets. No other package of the broker uses one."""
