"""Java's ``.properties`` syntax, the syntax of ``server.properties``."""

import re


def parse_properties(text: str) -> dict[str, str]:
    """Read a text with continued lines, escapes, and ``=``, ``:`` or a blank as separator."""
    values: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\n|\r", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _ends_in_open_backslash(line):
            following = next(lines, None)
            line = line[:-1]
            if following is None:
                break
            line += following.lstrip(" \t\f")
        key, value = _split_property(line)
        values[_unescape(key)] = _unescape(value)
    return values


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape.startswith("u") and len(escape) == 5:
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replaced, text, flags=re.DOTALL)
