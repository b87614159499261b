"""A small argument parser for commands that must start without importing a large one.

Parses ``--name value``, ``--name=value``, flags and positional arguments.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.cli.output import WRONG_USAGE, CommandFailed


class Arguments(NamedTuple):
    values: dict[str, list[str]]  # by the option's main name, in the order given
    flags: frozenset[str]
    positional: list[str]

    def last(self, name: str) -> str | None:
        """The last value of an option, which wins if there are several."""
        given = self.values.get(name)
        return given[-1] if given else None


def parsed(
    command: str,
    arguments: Sequence[str],
    *,
    with_value: Mapping[str, str],
    flags: Mapping[str, str],
) -> Arguments:
    """Both mappings go from every name of an option to its main name."""
    found = Arguments({}, frozenset(), [])
    given_flags = set()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if argument in flags:
            given_flags.add(flags[argument])
        elif argument in with_value:
            if not rest:
                raise _wrong(command, f"{argument} needs a value")
            found.values.setdefault(with_value[argument], []).append(rest.pop(0))
        elif equals and name in with_value:
            found.values.setdefault(with_value[name], []).append(value)
        elif argument.startswith("-") and argument != "-":
            raise _wrong(command, f"unknown option {argument}")
        else:
            found.positional.append(argument)
    return found._replace(flags=frozenset(given_flags))


def _wrong(command: str, what: str) -> CommandFailed:
    return CommandFailed(
        f"{command}: {what}; 'headrace {command} --help' lists the options", WRONG_USAGE
    )
