"""Why a report cannot be written."""


class ReportFailed(Exception):
    """The message says what is wrong with the file, the warehouse or a query."""
