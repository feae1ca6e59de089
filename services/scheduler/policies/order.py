"""Which waiting step goes first.

Rule: the higher priority; among equals, the one that was routed to this cell first. A step that lost its attempt keeps its place, so it
stands before all that came later. The step id only makes the order total.
Inputs: priority, number of arrival. Constants: none. Source: priority with first-come-first-served within a class, as in vLLM's and
SGLang's `priority` scheduling policies.
"""

from shared.contracts.ids import StepId

QueueKey = tuple[int, int, StepId]


def queue_key(priority: int, arrival: int, step: StepId) -> QueueKey:
    """Sorts ascending: the first is the next to go."""
    return (-priority, arrival, step)
