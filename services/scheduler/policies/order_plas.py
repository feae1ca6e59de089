"""Order "plas": program-level attained service.

Rule: a step's priority is the time for which earlier, completed steps of its program (the workflow) have run: less goes first. Priorities
are put into LEVELS queues, each twice as wide as the one before; within a queue, first come first served. Where a program has waited for
STARVED times as long as it has been served, its step goes to the end of the first queue, and its own waiting counts from zero again. A
step without a workflow is a program of its own.
Inputs: run and waiting times of the program's steps, number of arrival.
Constants: LEVELS, FIRST_NS, STARVED are own assumptions: the paper says that there are such bounds and a threshold (beta), and not which.
FIRST_NS is about one call of an agent.
Source: Autellix (Luo et al., "An efficient serving engine for LLM agents as general programs", arXiv 2502.13965, 2025), sections 4.2.1,
4.2.2.
Where it differs: nobody is stopped because its program has used up a queue's time; the scheduler does not see single iterations.
Starvation is looked for with each report (`report_ms`). What a lost attempt has run does not count. The load balancer of the paper is no
part of this.
"""

import msgspec

LEVELS = 8
FIRST_NS = 2_000_000_000  # programs that were served for less are in the first queue
STARVED = 4


class Program(msgspec.Struct, omit_defaults=True):
    """What is known of a workflow. `service_ns`: attained. `waited_ns`: of all its steps, in the queue. `first`: arrival of the first of
    its steps, where the order asks (order_program_fcfs.py); 0: not known."""

    service_ns: int = 0
    waited_ns: int = 0
    first: int = 0


def level(attained_ns: int) -> int:
    """The queue of a step whose program has attained so much: 0 goes first."""
    return min(LEVELS - 1, (attained_ns // FIRST_NS).bit_length())


def completed(program: Program, run_ns: int) -> None:
    """A step of the program has run to its end."""
    program.service_ns += run_ns


def starves(program: Program, waits_ns: int) -> bool:
    """Whether a step of the program that has waited for so long is to go first. It has not run."""
    return program.waited_ns + waits_ns >= STARVED * program.service_ns
