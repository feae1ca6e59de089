"""Order "fcfs": first come, first served.

Rule: whoever was routed to this cell first, whatever its priority. A step that lost its attempt keeps its place.
Inputs: number of arrival. Constants: none.
Source: the default of vLLM (0.6 and later) and SGLang (`--schedule-policy fcfs`), and what Autellix and VTC are compared with.
"""


def place(arrival: int) -> tuple[int, int]:
    """Sorts ascending."""
    return (0, arrival)
