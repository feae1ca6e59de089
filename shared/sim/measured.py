"""What a world saw: one row per call, one row per sample of the fleet, and sums. Columns of numbers, so that a day fits into memory."""

from array import array

import msgspec

STATUSES = ("succeeded", "refused", "failed", "cancelled", "expired", "shed")


class Calls:
    """One row per call of a program, in the order of their ends. Times in seconds of the world's clock; NaN: it never came to that."""

    def __init__(self) -> None:
        self.program = array("q")  # index into `programs`
        self.asked_s = array("d")  # the first try
        self.first_s = array("d")  # its first token
        self.ended_s = array("d")
        self.status = array("b")  # index into STATUSES
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")  # that its reader saw
        self.cached_tokens = array("q")  # of the prompt, not computed again in the attempt that succeeded
        self.computed_tokens = array("q")  # prefill, of all attempts
        self.wanted_tokens = array("q")  # prefill that an infinite cache would have left to compute
        self.attempts = array("q")
        self.tries = array("q")
        self.longest_gap_s = array("d")  # between two tokens, as far as the model tells them apart
        self.gpu_s = array("d")  # of all its attempts
        self.usd = array("d")

    def __len__(self) -> int:
        return len(self.asked_s)


class Programs:
    """One row per program, in the order of their beginnings."""

    def __init__(self) -> None:
        self.kind = array("q")  # index into `kinds`
        self.tenant = array("q")  # index into `tenants`
        self.begun_s = array("d")
        self.ended_s = array("d")  # NaN: not yet
        self.succeeded = array("b")
        self.well = array("b")  # all its objectives were met
        self.kinds: list[str] = []
        self.tenants: list[str] = []

    def __len__(self) -> int:
        return len(self.begun_s)


class Samples:
    """The fleet at equal distances of time."""

    def __init__(self) -> None:
        self.at_s = array("d")
        self.queued = array("q")  # in the schedulers
        self.running = array("q")  # in engines
        self.workers = array("q")  # ready
        self.coming = array("q")  # being provisioned or loading
        self.kv_used = array("d")  # share of all blocks that requests hold
        self.kv_cached = array("d")  # share that is kept for its content only
        self.tokens_per_s = array("d")  # output, since the last sample
        self.hit_rate = array("d")  # prompt tokens found in caches, since the last sample
        self.usd_per_hour = array("d")  # of all workers that are paid for


class Totals(msgspec.Struct, kw_only=True):
    """Sums over the whole run. `fleet_usd`: of all workers from the moment in which their machine is there to its end, busy or not;
    `load_usd`: of that, from the end of the warm-up until no more programs begin."""

    seconds: float = 0.0
    events: int = 0  # messages that services took
    fleet_usd: float = 0.0
    fleet_gpu_s: float = 0.0
    load_usd: float = 0.0
    load_worker_s: float = 0.0  # likewise
    wasted_gpu_s: float = 0.0  # of attempts whose work nobody used
    preemptions: int = 0
    retractions: int = 0  # by engines, for want of KV blocks
    lost_attempts: int = 0
    violations: list[str] = []  # of what must always hold (design.md section 8)


class Measured:
    """All of one run. `policy` and `seed` label it; `hash` is that of its event log: the same for the same scenario, policy and seed."""

    def __init__(self, policy: str = "", seed: int = 0) -> None:
        self.policy = policy
        self.seed = seed
        self.hash = ""
        self.calls = Calls()
        self.programs = Programs()
        self.samples = Samples()
        self.totals = Totals()
