"""typer's root command: the list of commands, and the exit status of each run."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli import output
from headrace.cli.main import COMMANDS, SECTIONS
from headrace.cli.options import CONTEXT_SETTINGS, examples

_PROGRAM = "headrace"
# The shell sets it to ask for completions.
_COMPLETION_VARIABLE = "_HEADRACE_COMPLETE"


def run_typer(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name and return its exit status."""
    first = arguments[0] if arguments else ""
    everything = first not in COMMANDS or _COMPLETION_VARIABLE in os.environ
    command = typer.main.get_command(built(list(COMMANDS) if everything else [first]))
    _simplify_arguments(command)
    try:
        command(arguments or ["--help"], prog_name=_PROGRAM)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else output.DONE
    return output.DONE


def built(commands: list[str]) -> typer.Typer:
    """The root with these commands; fewer imports start faster."""
    root = typer.Typer(
        cls=_Root,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings=CONTEXT_SETTINGS,
        epilog=examples(
            "headrace serve                               # listens on 127.0.0.1:9092",
            "echo hello | headrace produce greetings",
            "headrace consume greetings --from-beginning",
        ),
    )
    root.callback()(_root)
    for name in commands:
        import_module(f"headrace.cli.{COMMANDS[name]}").register(root)
    return root


class _Root(TyperGroup):
    """Lists the commands in sections, and cleans up after errors and interruptions."""

    def list_commands(self, ctx: object) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width  # click's margins
        for title, names in SECTIONS.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(limit))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if output.is_watched():  # the terminal printed ^C; the prompt starts on a new line
                output.note("")
            raise
        except typer.BadParameter as wrong:
            # Newer versions of typer pass on the text of pydantic.
            plain, _, _ = wrong.message.removeprefix("Value error, ").partition(", unable to parse")
            wrong.message = plain.replace("Input should be", "it should be")
            raise


def _simplify_arguments(command: Any) -> None:
    """Newer versions of typer print ``{TOPIC} <list[str]>`` for an argument: print ``TOPIC``."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
            parameter.get_usage_pieces = _without_braces(parameter.get_usage_pieces)
    for verb in getattr(command, "commands", {}).values():
        _simplify_arguments(verb)


def _without_braces(usage_pieces: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    return lambda ctx: [
        piece.translate({ord("{"): None, ord("}"): None}) for piece in usage_pieces(ctx)
    ]


def _show_version(wanted: bool) -> None:
    if wanted:
        output.line(f"headrace {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Headrace: a durable commit log that speaks the Kafka protocol."""
