"""An agent that works on its own for hours: hundreds to thousands of calls, its context summed up whenever it is full."""

from collections.abc import Iterator

from shared.sim.programs import Call, Program
from shared.sim.workloads.agent import Agent, loop
from shared.sim.workloads.chance import Random
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Count, Tenant
from shared.sim.workloads.source import Source, generated


class Autonomous(Agent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """22 long sessions of Claude Code had 273 to 1,992 calls, 795 in the mean (novita/agentic_code_dataset_22, 2025); here 1,000 in the
    middle and 1,180 in the mean, at most `calls_max`. A program is in memory as a whole: 1 or 2 MB for a thousand calls."""

    calls: Lognormal = Lognormal(median=1_000, sigma=0.6, min=2)
    calls_max: Count = 5_000


def programs(settings: Autonomous, source: Source) -> Iterator[Program]:
    """Agents on their own: about a thousand calls, with a summary whenever the context is full."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        system = source.system(tenant, settings.system_prompts, settings.system_tokens, random)
        return loop(settings, source, system, min(settings.calls_max, settings.calls.tokens(random)), random)

    return generated(settings, source, calls)
