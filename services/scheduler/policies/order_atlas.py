"""Order "atlas": adaptive thread-level attained service, for programs with parallel steps.

Rule: as "plas", but what a program has attained is its longest chain so far: a step begins with what its program had when it came, and
when it has ended, the program has that and the step's own time, if that is more than it has. So parallel steps count once, and all steps
of a program come from the same number.
Inputs, constants, differences: as order_plas.py.
Source: Autellix (Luo et al., arXiv 2502.13965, 2025), section 4.2.1 and algorithm 1.
"""

from services.scheduler.policies.order_plas import Program


def completed(program: Program, attained_ns: int, run_ns: int) -> None:
    """A step that came when the program had `attained_ns` has run to its end."""
    program.service_ns = max(program.service_ns, attained_ns + run_ns)
