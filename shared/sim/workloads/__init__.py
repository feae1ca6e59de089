"""Workloads: programs of calls as clients would ask for them, recorded or generated. docs/workloads.md has all kinds, settings and sources.

Pure but for reading traces at paths that are given. A workload follows from its kind, settings and seed alone; it is made while it is read,
in the order in which its programs begin, and keeps one program in memory.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shared.core.errors import LegatoError
from shared.sim.programs import Program
from shared.sim.workloads import (
    aiperf,
    autonomous,
    azure,
    chat,
    claude_code,
    copilot,
    dag,
    miniswe,
    mooncake,
    recorded,
    research,
    servegen,
    single,
)
from shared.sim.workloads.settings import Clients
from shared.sim.workloads.source import Source
from shared.sim.workloads.spot import spot_capacity

__all__ = ["kinds", "spot_capacity", "together", "workload"]

DATA = Path("../shared/data")  # the folder of public traces, from the project's root


class Kind(NamedTuple):
    settings: type[Clients]
    programs: Callable[[Any, Source], Iterator[Program]]


KINDS = {
    "single": Kind(single.Single, single.programs),
    "chat": Kind(chat.Chat, chat.programs),
    "copilot": Kind(copilot.Copilot, copilot.programs),
    "research": Kind(research.Research, research.programs),
    "autonomous": Kind(autonomous.Autonomous, autonomous.programs),
    "dag": Kind(dag.Dag, dag.programs),
    "mooncake": Kind(mooncake.Mooncake, mooncake.programs),
    "azure": Kind(azure.Azure, azure.programs),
    "servegen": Kind(servegen.ServeGen, servegen.programs),
    "claude-code": Kind(claude_code.ClaudeCode, claude_code.programs),
    "miniswe": Kind(miniswe.MiniSwe, miniswe.programs),
    "aiperf": Kind(aiperf.Aiperf, aiperf.programs),
    "recorded": Kind(recorded.Recorded, recorded.programs),
}


def workload(kind: str, settings: Mapping[str, Any], seconds: float, seed: int, data: Path = DATA) -> Iterator[Program]:
    """Programs that begin from 0 to `seconds`, in order. Raises LegatoError if there is no such kind, setting or trace."""
    return together([(kind, settings)], seconds, seed, data)


def together(loads: Sequence[tuple[str, Mapping[str, Any]]], seconds: float, seed: int, data: Path = DATA) -> Iterator[Program]:
    """Several workloads as one, each with texts and ids of its own: the second chat is chat-2. Raises as `workload`."""
    if not 0 <= seconds < math.inf:
        raise LegatoError(f"a workload cannot last {seconds} s: it must be 0 or more")
    played = []
    for index, (kind, settings) in enumerate(loads):
        checked = _settings(kind, settings)
        before = sum(other == kind for other, _ in loads[:index])
        source = Source(kind, seconds, seed, data, f"{kind}-{before + 1}" if before else kind)
        played.append(KINDS[kind].programs(checked, source))
    return heapq.merge(*played, key=lambda program: program.begins_s)


def kinds() -> dict[str, str]:
    """All kinds there are, each with what it is in one line."""
    return {name: (kind.programs.__doc__ or "").partition("\n")[0] for name, kind in KINDS.items()}


def _settings(kind: str, values: Mapping[str, Any]) -> Clients:
    if kind not in KINDS:
        raise LegatoError(f"there is no workload {kind!r}; choose one of {', '.join(KINDS)}")
    try:
        return msgspec.convert(dict(values), KINDS[kind].settings)
    except msgspec.ValidationError as error:
        fields = ", ".join(KINDS[kind].settings.__struct_fields__)
        raise LegatoError(f"workload {kind}: {error}; its settings are {fields}") from error
