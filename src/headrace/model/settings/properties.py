"""Java's ``.properties`` syntax, the syntax of ``server.properties``.

Java also accepts a line without ``=`` or ``:``; the name then ends at the first blank. Such a line
is refused here: in a configuration file it is a mistake.
"""

import re

from headrace.model.errors import ConfigError


def parse_properties(text: str, file_name: str) -> dict[str, str]:
    """Read a text with continued lines and escapes. ``file_name`` is for error messages."""
    values: dict[str, str] = {}
    lines = enumerate(re.split(r"\r\n|\n|\r", text), start=1)
    for number, line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _ends_in_open_backslash(line):
            _, following = next(lines, (number, None))
            line = line[:-1]
            if following is None:
                break
            line += following.lstrip(" \t\f")
        key, separator, value = _split_property(line)
        if not key or not separator:
            raise ConfigError(f'{file_name}:{number}: expected KEY=VALUE, got "{line}"')
        values[_unescape(key)] = _unescape(value)
    return values


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str, str]:
    """The name, the separator (empty if there is none), and the value."""
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    rest = line[position:].lstrip(" \t\f")
    separator = rest[:1] if rest.startswith(("=", ":")) else ""
    return key, separator, rest.removeprefix(separator).lstrip(" \t\f")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape.startswith("u") and len(escape) == 5:
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replaced, text, flags=re.DOTALL)
