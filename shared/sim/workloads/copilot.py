"""An assistant that edits code: 10 to 20 calls with tools between them (docs/workloads.md; lengths and times: agent.py)."""

from collections.abc import Iterator

from shared.sim.programs import Call, Program
from shared.sim.workloads.agent import Agent, loop
from shared.sim.workloads.chance import Random
from shared.sim.workloads.settings import Span, Tenant
from shared.sim.workloads.source import Source, generated


class Copilot(Agent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`calls` is an own assumption; the recorded sessions have 15 to 36."""

    calls: Span = Span(least=10, most=20)


def programs(settings: Copilot, source: Source) -> Iterator[Program]:
    """Coding assistants: 10 to 20 calls, a prompt that grows, tools between the calls."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        system = source.system(tenant, settings.system_prompts, settings.system_tokens, random)
        return loop(settings, source, system, random.randint(settings.calls.least, settings.calls.most), random)

    return generated(settings, source, calls)
