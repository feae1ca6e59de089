"""Every figure of a simulated run: its name, its unit, which way is better, and what it is. docs/scenarios.md has the same list.

"During the load" is from the end of the warm-up until no more programs begin."""

from typing import Literal, NamedTuple

Better = Literal["lower", "higher", ""]


class Figure(NamedTuple):
    """`name` stays as it is: programs read it. `headline`: shown on the terminal."""

    name: str
    unit: str
    better: Better
    about: str
    headline: bool = False


PERCENTILES = (50, 90, 99)


def _percentiles(what: str, about: str, headline: tuple[int, ...] = (50, 99)) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{what}_p{number}_s", "s", "lower", f"{about}, {number}th percentile", number in headline) for number in PERCENTILES
    )


FIGURES: tuple[Figure, ...] = (
    *_percentiles("ttft", "from a call's first try to its first token, of successful calls"),
    *_percentiles("itl", "mean time between two tokens of a call, of successful calls with two or more"),
    *_percentiles("gap", "longest time between two tokens of a call, likewise", (99,)),
    *_percentiles("call", "from a call's first try to its end, of successful calls"),
    Figure("program_mean_s", "s", "lower", "job completion time: from a program's beginning to its end, mean of successful ones", True),
    *_percentiles("program", "job completion time", (99,)),
    Figure("programs", "programs", "", "that began behind the warm-up"),
    Figure("program_success", "share", "higher", "of programs that succeeded", True),
    Figure("program_well", "share", "higher", "of programs that succeeded and met all their objectives", True),
    Figure("program_unfinished", "share", "lower", "of programs that had not ended when the run was over"),
    Figure("program_goodput_per_s", "1/s", "higher", "programs that met all their objectives, per second of the load", True),
    Figure("calls", "calls", "", "that were asked for behind the warm-up, and ended"),
    Figure("call_success", "share", "higher", "of calls that succeeded, all tries together"),
    Figure("call_refused", "share", "lower", "of calls whose last try was refused"),
    Figure("call_shed", "share", "lower", "of calls whose last try was shed from a full queue"),
    Figure("call_expired", "share", "lower", "of calls whose last try ran out of time"),
    Figure("call_cancelled", "share", "lower", "of calls whose client lost its patience for good"),
    Figure("call_failed", "share", "lower", "of calls whose last try failed"),
    Figure(
        "call_goodput_per_s", "1/s", "higher", "successful calls of programs that met all their objectives, per second of the load", True
    ),
    Figure("output_tokens_per_s", "tokens/s", "higher", "that readers of successful calls saw, per second of the load"),
    Figure("attempts_per_call", "attempts", "lower", "dispatches to a worker, per call"),
    Figure("tries_per_call", "tries", "lower", "submissions by the client, per call"),
    Figure("usd_per_program", "USD", "lower", "fleet_usd per successful program", True),
    Figure("usd_per_call", "USD", "lower", "fleet_usd per successful call"),
    Figure("gpu_s_per_program", "worker-s", "lower", "fleet_gpu_s per successful program", True),
    Figure("gpu_s_per_call", "worker-s", "lower", "fleet_gpu_s per successful call"),
    Figure("fleet_usd", "USD", "lower", "money for the fleet, busy or not, during the load"),
    Figure("fleet_gpu_s", "worker-s", "lower", "seconds of all workers, busy or not, during the load"),
    Figure("utilisation", "share", "", "of fleet_gpu_s, what attempts of calls took that ended during the load"),
    Figure("wasted_gpu_s", "worker-s", "lower", "seconds of attempts whose work nobody used, of the whole run"),
    Figure("wasted_share", "share", "lower", "of the seconds of all workers, what went into attempts whose work nobody used", True),
    Figure("hit_rate", "share", "higher", "of the prompt tokens of successful calls that were found in a cache", True),
    Figure("hit_rate_infinite", "share", "", "of these tokens that one cache without end would have held"),
    Figure("hit_of_infinite", "share", "higher", "of the tokens that one cache without end would have held, those that were found", True),
    Figure("recomputed_tokens", "tokens", "lower", "prefilled although one cache without end would have held them"),
    Figure("queue_mean", "steps", "lower", "waiting in the schedulers, mean during the load", True),
    Figure("queue_max", "steps", "lower", "waiting in the schedulers, most during the load"),
    Figure("running_mean", "attempts", "", "in engines, mean during the load"),
    Figure("kv_used_mean", "share", "", "of KV blocks that requests hold, mean during the load", True),
    Figure("kv_used_max", "share", "", "of KV blocks that requests hold, most during the load"),
    Figure("kv_cached_mean", "share", "", "of KV blocks that are kept for their content only, mean during the load"),
    Figure("workers_mean", "workers", "", "ready, mean during the load", True),
    Figure("workers_max", "workers", "", "ready, most during the load"),
    Figure("preemptions", "attempts", "", "stopped for a step of higher priority, in the whole run"),
    Figure("retractions", "attempts", "lower", "stopped by engines for want of KV blocks, in the whole run"),
    Figure("lost_attempts", "attempts", "lower", "lost with their worker, in the whole run"),
    Figure("events", "messages", "", "that services took, in the whole run"),
    Figure("violations", "count", "lower", "of what must always hold; anything but 0 is a bug of Legato"),
)

BY_NAME = {figure.name: figure for figure in FIGURES}

# What is also told by kind of program, by tenant, and by part of the time.
GROUPED = (
    *("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "itl_p50_s", "itl_p90_s", "itl_p99_s", "call_p50_s", "call_p90_s", "call_p99_s"),
    *("calls", "call_success", "hit_rate"),
    *("programs", "program_mean_s", "program_p50_s", "program_p90_s", "program_p99_s", "program_success", "program_well"),
)
