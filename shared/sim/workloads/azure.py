"""The Azure conversation trace of 2023: 19,366 requests in an hour (Patel et al., Splitwise, ISCA 2024; CC-BY-4.0).

Columns `TIMESTAMP` (in steps of 100 ns), `ContextTokens`, `GeneratedTokens`. It does not say which prompts are alike: each is a text of its
own.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from shared.sim.programs import Program
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.source import Source, tenant_of
from shared.sim.workloads.traces import Trace, found, parsed, played

ORIGIN = "https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceTrace_conv.csv)"
COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"

Row = tuple[datetime, int, int]  # when, and tokens of the prompt and of the answer


class Azure(Trace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str = "traces/azure_conv.csv"


def programs(settings: Azure, source: Source) -> Iterator[Program]:
    """The Azure conversation trace of 2023: single requests, recorded times and lengths."""
    path = found(source.data, settings.path, ORIGIN)
    random = source.random("tenants")

    def program(begins_s: float, row: Row) -> Program:
        talk = Conversation(source, [source.fresh(row[1])])
        talk.ask(row[2])
        return source.program(settings, tenant_of(settings.tenants, random), begins_s, talk.calls)

    return (program(begins_s, row) for begins_s, _, row in played(settings, source.seconds, lambda _: _timed(path)))


def _timed(path: Path) -> Iterator[tuple[float, Row]]:
    """Rows with the seconds since the first one."""
    first: datetime | None = None
    for row in parsed(path, _row, header=COLUMNS):
        first = first or row[0]
        yield (row[0] - first).total_seconds(), row


def _row(line: str) -> Row:
    at, prompt, output = line.split(",")
    return datetime.fromisoformat(at), int(prompt), int(output)
