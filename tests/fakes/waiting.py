"""Wait for another thread or process that does not report its progress."""

import asyncio
import time

LIMIT_S = 20


def wait_until(condition, limit_s=LIMIT_S):
    """Poll until ``condition`` holds; fails after ``limit_s`` seconds."""
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not hold in time"
        time.sleep(0.01)


async def until_true(condition, limit_s=LIMIT_S):
    """Let other tasks of the loop run until ``condition`` holds."""
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not hold in time"
        await asyncio.sleep(0.001)
