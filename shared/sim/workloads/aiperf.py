"""Coding agents with long contexts, by the parameters of an agentic data set of AIPerf (NVIDIA, 2026; Apache-2.0).

A manifest in JSON: log-normal laws by `mu` and `sigma` of the logarithm. A first prompt has three layers: tools and system prompt that all
sessions have in common, a repository's instructions (in groups, the n-th used n**-alpha times as often as the first), and what the session
has opened. Then turns add to it, with the delays of tools or of people in ms, until it would be too long, or ends by chance: with
base_probability * (1 + (context_scaling - 1) * tokens / max_prompt_tokens) before each turn. Sessions that are taken up again later
(`restart_fraction`) are left out.
"""

import math
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.settings import Arriving, Count, Tenant
from shared.sim.workloads.source import Source, generated
from shared.sim.workloads.traces import PathText, found

ORIGIN = "https://github.com/ai-dynamo/aiperf (a manifest of its agentic code data sets)"

Probability = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]


class Aiperf(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: PathText = "agents/aiperf_inference-day-2026_manifest.json"
    calls_max: Count = 1_000


class Law(msgspec.Struct, frozen=True):
    """Of a log-normal quantity; what is above `max` becomes that."""

    mu: Annotated[float, Meta(ge=-50, le=50)]
    sigma: Annotated[float, Meta(ge=0, le=5)]
    max: float | None = None

    def draw(self, random: Random) -> float:
        return min(random.lognormvariate(self.mu, self.sigma), math.inf if self.max is None else self.max)


class Delay(msgspec.Struct, frozen=True):
    agentic_fraction: Probability
    agentic_delay: Law  # ms
    human_delay: Law


class Reset(msgspec.Struct, frozen=True):
    base_probability: Probability
    context_scaling: Annotated[float, Meta(ge=0)]


class Groups(msgspec.Struct, frozen=True):
    num_groups: Annotated[int, Meta(ge=1, le=100_000)]
    zipf_alpha: Annotated[float, Meta(ge=0, le=10)]


class Layers(msgspec.Struct, frozen=True):
    layer1_tokens: Tokens
    layer1_5_tokens: Tokens
    layer2: Law
    layer1_5_groups: Groups


class Parameters(msgspec.Struct, frozen=True):
    new_tokens_per_turn: Law
    generation_length: Law
    inter_turn_delay: Delay
    reset: Reset
    max_prompt_tokens: Tokens
    cache: Layers


class Manifest(msgspec.Struct, frozen=True):
    generation_params: Parameters


def programs(settings: Aiperf, source: Source) -> Iterator[Program]:
    """Coding agents with contexts of 50,000 tokens and more, by AIPerf's parameters."""
    of = _parameters(found(source.data, settings.path, ORIGIN))
    groups = range(of.cache.layer1_5_groups.num_groups)
    weights = list(accumulate((group + 1) ** -of.cache.layer1_5_groups.zipf_alpha for group in groups))

    def calls(_: Tenant, random: Random) -> list[Call]:
        (group,) = random.choices(groups, cum_weights=weights)
        layers = (source.shared("layer 1", of.cache.layer1_tokens), source.shared(f"layer 1.5 of {group}", of.cache.layer1_5_tokens))
        talk = Conversation(source, (*layers, source.fresh(round(of.cache.layer2.draw(random)))))
        talk.ask(round(of.generation_length.draw(random)))
        while len(talk.calls) < settings.calls_max:
            new = max(1, round(of.new_tokens_per_turn.draw(random)))
            grown = 1 + (of.reset.context_scaling - 1) * (talk.tokens + new) / of.max_prompt_tokens
            if talk.tokens + new >= of.max_prompt_tokens or random.random() < of.reset.base_probability * grown:
                break
            talk.say(new)
            talk.ask(round(of.generation_length.draw(random)), _delay_s(of.inter_turn_delay, random))
        return talk.calls

    return generated(settings, source, calls)


def _delay_s(delay: Delay, random: Random) -> float:
    law = delay.agentic_delay if random.random() < delay.agentic_fraction else delay.human_delay
    return law.draw(random) / 1_000


def _parameters(path: Path) -> Parameters:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest).generation_params
    except msgspec.DecodeError as error:  # of which validation errors are a kind
        raise LegatoError(f"{path} is no manifest of an agentic data set: {error}") from error
