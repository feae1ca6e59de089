"""Programs of stages: in each some calls side by side on parts of one text, and one that joins them for the next stage."""

from collections.abc import Iterator

from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Span, Tenant, Tokens
from shared.sim.workloads.source import Source, generated


class Dag(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape is map and reduce, as in Parrot (Lin et al., OSDI 2024), several times over; all numbers are own assumptions. Calls of a
    stage begin alike (system prompt, and what the stage before came to): a prefix to share at the same time. 19 calls in the mean."""

    system_tokens: Tokens = 1_000
    stages: Span = Span(least=2, most=4)
    width: Span = Span(least=2, most=8)
    task: Lognormal = Lognormal(median=1_500, sigma=0.6, max=16_000)  # at the beginning of the first stage's calls
    part: Lognormal = Lognormal(median=800, sigma=0.8, max=16_000)  # of each call alone
    output: Lognormal = Lognormal(median=150, sigma=0.7, max=2_048)
    joined: Lognormal = Lognormal(median=400, sigma=0.6, max=4_096)
    tool_s: Lognormal = Lognormal(median=0.2, sigma=1.5, max=120)  # before a stage


def programs(settings: Dag, source: Source) -> Iterator[Program]:
    """Graphs of calls: stages of 2 to 8 parallel ones, each joined by one."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        system = source.system(tenant, 1, settings.system_tokens, random)
        plan = Conversation(source, (*system, source.fresh(settings.task.tokens(random))), "plan")
        made = [plan.ask(settings.output.tokens(random))]
        beginning = (*made[0].prompt, made[0].output)
        for stage in range(1, random.randint(settings.stages.least, settings.stages.most) + 1):
            before, wait_s = made[-1], settings.tool_s.draw(random)
            parts: list[Call] = []
            for part in range(1, random.randint(settings.width.least, settings.width.most) + 1):
                talk = Conversation(source, beginning, f"stage-{stage}-part-{part}")
                talk.say(settings.part.tokens(random))
                parts.append(talk.ask(settings.output.tokens(random), wait_s, after=[before.key]))
            join = Conversation(source, (*system, *(part.output for part in parts)), f"stage-{stage}-join")
            made += [*parts, join.ask(settings.joined.tokens(random), after=[part.key for part in parts])]
            beginning = (*system, made[-1].output)
        return made

    return generated(settings, source, calls)
