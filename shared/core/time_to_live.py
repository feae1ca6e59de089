"""How long a program's KV is worth keeping while its tool runs.

Rule: the time tau for which P(tau) x benefit - tau is greatest, among 0 and the durations that were seen. P(tau) is the share of the tool's
calls that were over by then. The benefit is what is saved when the next step comes in time: computing the context again (or loading it),
and the wait in the queue, as far as it is worth something to go on with a program that was begun:
    benefit = queueing x memoryfulness + recomputing            all in seconds
    memoryfulness = -correlation(steps done, steps left), over the programs seen: 1 where all have as many steps, 0 where what is done
                    says nothing of what is left
Both sides are shares of the memory that the program takes, which therefore cancels out: what is kept delays others for as long as it is
kept. With SEEN_MIN calls of the tool or fewer, those of all tools count; with as few of all, durations are taken for exponential with a
mean of one second, and the workload for memoryful: tau = ln(benefit).
Inputs: durations of the tool's calls and of all tools', lengths of programs that have ended, mean wait of those whose KV was gone, seconds
to compute the context.
Constant: SEEN_MIN 100, the paper's K.
Source: Li et al., "Continuum: Efficient and Robust Multi-Turn LLM Agent Scheduling with KV Cache Time-to-Live", arXiv 2511.02230, 2025,
sections 4.1 and 4.2.
Where it differs: nothing in the rule; who calls it bounds what was seen (the paper does not say how). In use by pools in simulation
(`keep = "continuum"`); no live step carries a time to live yet.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import log, sqrt

SEEN_MIN = 100


def keep_s(tool: Sequence[float], every: Sequence[float], benefit: float) -> float:
    """For how long to keep it; 0: not at all. `tool`, `every`: durations in seconds, of this tool and of all. `benefit`: in seconds."""
    if len(every) <= SEEN_MIN:
        return log(benefit) if benefit > 1 else 0.0
    return best_s(tool if len(tool) > SEEN_MIN else every, benefit)


def best_s(durations: Iterable[float], benefit: float) -> float:
    """The time with the greatest expected gain; of several, the shortest. `durations`: at least one."""
    seen = sorted(durations)
    gains = ((bisect_right(seen, tau) / len(seen) * benefit - tau, -tau) for tau in dict.fromkeys([0.0, *seen]))
    return -max(gains)[1]


def benefit_s(queueing_s: float, memoryful: float, recomputing_s: float) -> float:
    """What it is worth that the next step finds its KV."""
    return queueing_s * memoryful + recomputing_s


def memoryfulness(lengths: Iterable[int]) -> float:
    """Of programs with so many steps each. 1 where nothing can be said, as in the paper's cold start."""
    pairs = [(done, length - done) for length in lengths for done in range(1, length + 1)]
    done_mean = sum(done for done, _ in pairs) / max(1, len(pairs))
    left_mean = sum(left for _, left in pairs) / max(1, len(pairs))
    both = sum((done - done_mean) * (left - left_mean) for done, left in pairs)
    spread = sqrt(sum((done - done_mean) ** 2 for done, _ in pairs) * sum((left - left_mean) ** 2 for _, left in pairs))
    return -both / spread if spread else 1.0
