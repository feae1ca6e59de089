"""What commands print: results on standard output, everything said about them on standard error."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 160  # of tables that nobody's terminal bounds
SLOW_S = 2.0  # until a wait is told

out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
err = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line about what goes on."""
    err.print(text, style="dim", markup=False, soft_wrap=True)


def fail(text: str) -> None:
    """A line about what went wrong."""
    err.print("legato:", style="bold red", end=" ")
    err.print(text, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One line of JSON, for machines."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


class Rows(Table):
    """A table whose cells are plain text: what is in them may come from anybody, and brackets are no markup there. Colour: `coloured`."""

    def add_row(self, *cells: str | Text) -> None:  # type: ignore[override]
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def coloured(text: str, wanted: bool = True) -> Text:
    """A cell that is to be seen, if `wanted`."""
    return Text(text, style="yellow" if wanted else "")


def table(*columns: str, right: tuple[str, ...] = ()) -> Rows:
    """An empty table; the columns named in `right` hold numbers."""
    made = Rows(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


@contextmanager
def saying_when_slow(text: str, after_s: float | None = None) -> Iterator[None]:
    """Say what is waited for, within an event loop, once it has taken so long (None: SLOW_S)."""
    timer = asyncio.get_running_loop().call_later(SLOW_S if after_s is None else after_s, say, text)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def counting(what: str) -> Iterator[Progress]:
    """A bar for work of known size; shows itself at terminals only, and goes away at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield progress


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner for a wait of unknown length; a plain line where there is no terminal."""
    if err.is_terminal:
        with err.status(what, spinner="dots"):
            yield
    else:
        say(what)
        yield
