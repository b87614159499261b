"""A small reader of options, for the commands that must start before a large one is imported.

``--name value``, ``--name=value`` and flags; what is no option is returned in order.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.cli.output import WRONG_USAGE, CommandFailed


class Arguments(NamedTuple):
    values: dict[str, list[str]]  # by the option's first spelling, in the order given
    flags: frozenset[str]
    positional: list[str]

    def last(self, name: str) -> str | None:
        """The value that counts when an option was given more than once."""
        given = self.values.get(name)
        return given[-1] if given else None


def parsed(
    command: str,
    arguments: Sequence[str],
    *,
    with_value: Mapping[str, str],
    flags: Mapping[str, str],
) -> Arguments:
    """Both mappings go from every spelling to the first spelling of the option."""
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
            raise _wrong(command, f"no such option {argument}")
        else:
            found.positional.append(argument)
    return found._replace(flags=frozenset(given_flags))


def _wrong(command: str, what: str) -> CommandFailed:
    return CommandFailed(
        f"{command}: {what}; 'headrace {command} --help' lists the options", WRONG_USAGE
    )
