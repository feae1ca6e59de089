"""Order "program_fcfs": first come, first served, by programs.

Rule: the step whose program (the workflow) came first, by its first step; within a program, first come first served. A step without a
workflow is a program of its own.
Inputs: number of arrival of the program's first step, and of the step. Constants: none.
Source: Continuum (Li et al., arXiv 2511.02230, 2025), section 4.3: the last of its three criteria.
Where it differs: before it, Continuum looks at two things that only an engine knows: whether it has stopped a request before, and whether
the program's KV is still kept. Here a stopped step keeps its place; what is kept draws a step to its worker, and not forward.
"""


def place(first: int, arrival: int) -> tuple[int, int]:
    """Sorts ascending. `first`: arrival of the program's first step."""
    return (first, arrival)
