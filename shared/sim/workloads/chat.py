"""Conversations of people with a model: several turns, each with all that was said before, and time to read and type between them."""

import math
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Count, Tenant, Tokens
from shared.sim.workloads.source import Source, generated


class Chat(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turns, messages and answers as of WildChat-1M (Zhao et al., ICLR 2024): 2.5 turns in the mean, here geometric; messages of 296 tokens
    in the mean, heavy-tailed; answers of 441. Think time: the human delays of the agentic data set of AIPerf (NVIDIA, 2026): 15 s in the
    middle, 30 s in the mean. A conversation ends before its prompt and answer together go over `context_max`. The system prompt is an own
    assumption."""

    system_tokens: Tokens = 500
    system_prompts: Count = 1
    turns_mean: Annotated[float, Meta(ge=1, le=1_000)] = 2.5
    turns_max: Count = 100
    message: Lognormal = Lognormal(median=56, sigma=1.85, max=16_000)
    output: Lognormal = Lognormal(median=323, sigma=0.79, max=4_096)
    think_s: Lognormal = Lognormal(median=15, sigma=1.18, max=600)
    context_max: Tokens = 32_768


def programs(settings: Chat, source: Source) -> Iterator[Program]:
    """Conversations of several turns, with time to read and type between them."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        talk = Conversation(source, source.system(tenant, settings.system_prompts, settings.system_tokens, random))
        for turn in range(_turns(settings, random)):
            message, output = settings.message.tokens(random), settings.output.tokens(random)
            wait_s = settings.think_s.draw(random) if turn else 0.0
            if turn and talk.tokens + message + output > settings.context_max:
                break
            talk.say(message)
            talk.ask(output, wait_s)
        return talk.calls

    return generated(settings, source, calls)


def _turns(settings: Chat, random: Random) -> int:
    """Geometric, at least 1: after each turn there is another one with the same probability."""
    again = 1 - 1 / settings.turns_mean
    return min(settings.turns_max, 1 + int(math.log(1 - random.random()) / math.log(again))) if again else 1
