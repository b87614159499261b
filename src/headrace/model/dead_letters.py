"""Dead letters in topics: the topics, and the headers that say what failed, where and why.

A letter has the key, the value and the headers of its record. A retry is a letter that is sent
back to its pipeline: it has the same headers, and an attempt that is one higher.
"""

from typing import Final

HEADER_PREFIX: Final = "__headrace.errors."  # keeps our headers apart from those of the user
DEAD_LETTER_TOPIC: Final = "headrace-deadletters"
# A letter is as large as its record, which the topic of the record accepted. If the topic of
# letters accepts less, the letter is sent without its value: the table of letters has it.
LETTER_VALUE_SIZE_MAX: Final = 48 << 20
LETTER_SIZE_MAX: Final = 64 << 20
MESSAGE_SIZE_SETTING: Final = "max.message.bytes"
MESSAGE_SIZE_DEFAULT: Final = 1 << 20  # Kafka's, for a topic whose settings we may not see
# What this setting counts beside keys, values and headers: of a letter, and of each header.
LETTER_OVERHEAD: Final = 200
HEADER_OVERHEAD: Final = 10
DEAD_LETTER_CONFIGS: Final = {MESSAGE_SIZE_SETTING: str(LETTER_SIZE_MAX)}
# Kept: a table that is computed again needs the retries too.
RETRY_CONFIGS: Final = {MESSAGE_SIZE_SETTING: str(LETTER_SIZE_MAX), "retention.ms": "-1"}


def retry_topic(pipeline: str) -> str:
    """The topic that only this pipeline reads."""
    return f"headrace-{pipeline}-retry"
