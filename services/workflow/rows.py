"""Between messages and rows of Postgres."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shared.contracts.outcomes import Problem, Usage
from shared.runtime.db import Row


def columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Many rows as one array per column, as the statements of sql.py take them."""
    return [list(column) for column in zip(*rows, strict=True)]


def plain(text: str) -> str:
    """Fit for a column of type text, which cannot hold U+0000; the messages are kept as they are, in columns of type json."""
    return text.replace("\0", "\ufffd")


def usage_of(row: Row) -> Usage:
    return Usage(prompt_tokens=row["prompt_tokens"], cached_tokens=row["cached_tokens"], output_tokens=row["output_tokens"])


def problem_of(row: Row) -> Problem | None:
    return None if row["problem"] is None else msgspec.json.decode(row["problem"], type=Problem)
