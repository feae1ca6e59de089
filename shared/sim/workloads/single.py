"""Single requests: one call each, with nothing in common but a system prompt."""

from collections.abc import Iterator

from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Count, Tenant, Tokens
from shared.sim.workloads.source import Source, generated


class Single(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mean lengths of the Azure conversation trace of 2023 (Patel et al., Splitwise, ISCA 2024), and the spread of their logarithms:
    prompts of 1,155 tokens, of which a system prompt is 200 (own assumption), and answers of 211."""

    system_tokens: Tokens = 200
    system_prompts: Count = 1
    prompt: Lognormal = Lognormal(median=640, sigma=0.9, max=16_000)
    output: Lognormal = Lognormal(median=146, sigma=0.86, max=1_000)


def programs(settings: Single, source: Source) -> Iterator[Program]:
    """Single requests of all kinds of users, with a shared system prompt."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        talk = Conversation(source, source.system(tenant, settings.system_prompts, settings.system_tokens, random))
        talk.say(settings.prompt.tokens(random))
        talk.ask(settings.output.tokens(random))
        return talk.calls

    return generated(settings, source, calls)
