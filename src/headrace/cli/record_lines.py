"""A line of text as a record to produce. Pure.

    [headers SEPARATOR] [key SEPARATOR] value

Headers and key are present only if their separator is given. The first occurrence of a separator
counts, so a value may contain both.
"""

from typing import NamedTuple

from headrace.cli import values


class NotARecord(ValueError):
    """The line lacks a separator that the options require."""


class LineRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineFormat(NamedTuple):
    key_separator: bytes | None = None
    header_separator: bytes | None = None
    header_pair_separator: str = "="
    null_marker: bytes | None = None
    # Headers of every record, before those of the line.
    constant_headers: tuple[tuple[str, bytes | None], ...] = ()

    def parse(self, line: bytes) -> LineRecord:
        headers = list(self.constant_headers)
        if self.header_separator is not None:
            text, separator, line = line.partition(self.header_separator)
            if not separator:
                raise NotARecord(f"no header separator {self.header_separator.decode()!r}")
            if text != self.null_marker:
                try:
                    headers += values.headers(text.decode(), self.header_pair_separator)
                except (ValueError, UnicodeDecodeError) as failure:
                    raise NotARecord(str(failure)) from None
        key: bytes | None = None
        if self.key_separator is not None:
            key, separator, line = line.partition(self.key_separator)
            if not separator:
                raise NotARecord(f"no key separator {self.key_separator.decode()!r}")
        return LineRecord(self._or_null(key), self._or_null(line), headers)

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null_marker else data
