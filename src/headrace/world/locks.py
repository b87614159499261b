"""Locks between the event loop and the threads of its executor.

A simulation runs the work for threads inline, so that no such lock is ever contended there.
"""

from threading import Lock

__all__ = ["Lock"]
