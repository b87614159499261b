"""Errors raised by the conversion between record batches and Arrow columns.

All are plain exceptions with one text: Spark pickles them and shows only the text.
"""


class BadSchema(Exception):
    """A schema of values cannot become Arrow columns; the text names the field and the reason."""


class BadRow(Exception):
    """A row cannot be written as it is; the text names the row and what to change."""


class BadRecord(Exception):
    """A record cannot become a row; the text names its partition and offset."""
