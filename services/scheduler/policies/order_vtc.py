"""Order "vtc": fair shares of tokens for tenants, by virtual token counters.

Rule: the first step of the tenant whose counter is least; among equals, the tenant that was seen first. A counter grows by INPUT_WEIGHT
for each prompt token when a step is dispatched for the first time, and by OUTPUT_WEIGHT for each output token as it is heard of. A tenant
that has nothing waiting and gets a step is lifted: to the least counter of those that wait, or where nobody does, to that of the last one
that did. So nobody saves up what it did not use, and nobody's lead is held against it.
Inputs: tenant, prompt and output tokens, number of arrival.
Constants: weights 1 and 2, as in the paper's experiments (the price of output was about twice that of input).
Source: Sheng et al., "Fairness in serving large language models", OSDI 2024, algorithm 2 and section 5.1; its artifact, vtc_req_queue.py.
Where it differs: output tokens are known when workers report them (`beat_ms`), not after each iteration; cached prompt tokens count like
others, as in the paper; all tenants weigh the same. A tenant that nobody has heard of for long is forgotten, and begins as a new one.
"""

import msgspec

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class Tenant(msgspec.Struct, omit_defaults=True):
    """`number`: which of all tenants it is, by when it was first seen. `waiting`: its steps in queues."""

    number: int
    counter: int = 0
    waiting: int = 0


def lifted(counter: int, others_waiting: list[int], last_left: int) -> int:
    """The counter of a tenant that has nothing waiting when a step comes. `others_waiting`: counters. `last_left`: that of the tenant
    that was the last to leave the queue."""
    return max(counter, min(others_waiting) if others_waiting else last_left)


def input_cost(prompt_tokens: int) -> int:
    """What a dispatch adds."""
    return INPUT_WEIGHT * prompt_tokens


def output_cost(output_tokens: int) -> int:
    """What outputs add."""
    return OUTPUT_WEIGHT * output_tokens
