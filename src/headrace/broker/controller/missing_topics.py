"""Topics that could not be created automatically: the errors for clients, and the log lines."""

import asyncio
import logging
from collections.abc import Mapping

from headrace.broker.repeat_limit import RepeatLimit
from headrace.core.topics import INTERNAL_TOPICS
from headrace.model.errors import ErrorCode, Rejected

_log = logging.getLogger("headrace.controller")


class MissingTopics:
    def __init__(self) -> None:
        self._limit = RepeatLimit()

    def codes(self, refusals: Mapping[str, Rejected]) -> dict[str, ErrorCode]:
        """The errors of topics that were not created and do not exist."""
        missing = {
            name: refusal
            for name, refusal in refusals.items()
            # Another client created it meanwhile.
            if refusal.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }
        for name, refusal in missing.items():
            if name in INTERNAL_TOPICS:
                self._report(name, refusal)
        return {name: refusal.code for name, refusal in missing.items()}

    def _report(self, internal_topic: str, refusal: Rejected) -> None:
        """Log the reason: clients only get COORDINATOR_NOT_AVAILABLE, and keep retrying."""
        now = asyncio.get_running_loop().time()
        repetitions = self._limit.occurred((internal_topic, str(refusal)), now)
        if repetitions is not None:
            _log.error(
                "Cannot create %s, so its coordinators are not available: %s%s",
                internal_topic,
                refusal,
                repetitions,
            )
