"""The command line: `legato --help`."""

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import nats.errors
import typer

from legato import __version__
from legato.console import fail
from shared.core.errors import LegatoError, leaves

# Each is a function, or a group of them, in the module of its name in legato/commands; in the order in which people meet them.
COMMANDS = (
    *("up", "submit", "status", "models", "timeline", "workflow", "cost", "replay", "dead", "run", "migrate"),
    *("record", "simulate", "calibrate", "demo"),
)


def build(words: Sequence[str]) -> typer.Typer:
    """The program for a command line. Only the command that it names is loaded: all of them would take a second more."""
    app = typer.Typer(
        name="legato",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=legato,
    )
    named = next((word for word in words if not word.startswith("-")), "")
    for name in [named] if named in COMMANDS else COMMANDS:
        command = getattr(importlib.import_module(f"legato.commands.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"legato {__version__}")
        raise typer.Exit


def legato(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Legato: a control plane for fleets of LLM inference engines that serve agents.

    Start here: `legato up`, and from another shell `legato submit "Hello"`.
    """


def main() -> None:
    """The program. Exit status: 0 done, 1 an expected "no", 2 wrong usage, 130 interrupted, 143 by SIGTERM."""
    try:
        build(sys.argv[1:])()
    except* LegatoError as group:
        for error in leaves(group):
            fail(str(error))
        sys.exit(1)
    except* nats.errors.Error as group:
        for error in leaves(group):
            fail(f"NATS refused: {error}; `legato migrate` creates what the fleet needs there")
        sys.exit(1)
    except* KeyboardInterrupt:
        sys.exit(130)
    except* BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has left; nothing is to be said
        sys.exit(1)
