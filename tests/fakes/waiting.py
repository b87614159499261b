"""Waiting for what another thread or process does, where nothing tells of it."""

import time

LIMIT_S = 20


def wait_until(condition, limit_s=LIMIT_S):
    """Look again and again; how long it takes is nobody's matter, only that it comes."""
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.01)
