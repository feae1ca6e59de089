"""Continuous batching with chunked prefill over a paged prefix cache: what an engine does in each iteration, and how long it takes.

Rules:
- One iteration computes at most `tokens_per_step` tokens: one for each decoding request first, then prefill in chunks, in order
  of admission.
- A waiting request is admitted (higher priority first, then arrival) when there is a slot, when tokens of the iteration are left, and when
  its whole context fits with one block to spare for each running request. What the prefix cache holds of its context is not computed
  again, but at least one token always is: the one whose logits give the next token.
- When a running request needs a block and none can be evicted, the youngest of the lowest priority is retracted: its blocks are released
  and it waits again. Its tokens so far count as context then, so none is produced twice.
- What the host's tier has of a context behind the cache is copied back when the request is admitted, while others compute: the iteration
  takes as long as the longer of both (host_tier.py). An adapter is loaded before the iteration begins (adapters.py).
- A request that could not finish alone in the whole cache is never taken; so the oldest always advances and nothing locks up.

Token values do not matter here: a request is a number of prompt tokens, a number of output tokens and the hashes of its blocks. Pure: no
clock, no I/O; the caller lets `Step.duration_ns` pass and then shows what was produced. Source: Orca (Yu et al., OSDI 2022),
Sarathi-Serve (Agrawal et al., OSDI 2024), and the retraction of SGLang (Zheng et al., 2024).
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from enum import StrEnum

import msgspec

from shared.contracts.kv import KvEvent
from shared.core.adapters import Adapters
from shared.core.eviction import Eviction
from shared.core.kv_cache import Chain, Holding, KvCache
from shared.core.step_law import StepLaw, StepWork, attended, step_ns
from shared.core.strides import Rows, Stride, fill, longest, planned


class BatchingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one engine."""

    blocks: int  # KV blocks
    block_tokens: int = 16
    slots: int = 64  # requests that run at once
    queue_max: int = 1024  # requests that may wait beyond the slots
    tokens_per_step: int = 2048  # new tokens per iteration, at least `slots`
    eviction: Eviction = "lru"
    kept_share: float = 0.5  # of the blocks: what `keep` may keep at once
    host_blocks: int = 0  # of a second tier in the host's memory
    host_block_ns: int = 0  # to copy one back
    adapters_max: int = 0  # LoRA adapters that are loaded at once
    adapter_load_ns: int = 0


class Refusal(StrEnum):
    """Why a request was not taken."""

    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"  # its context would not fit into the whole cache
    NO_ADAPTERS = "no_adapters"  # it names an adapter, and the engine has no place for any


class Request:
    """One request. The caller fills the first five, and `adapter`; the model counts the rest."""

    __slots__ = (
        "adapter",
        "arrival",
        "cached_tokens",
        "chain",
        "computed",
        "holding",
        "host_cached_tokens",
        "key",
        "output_tokens",
        "priority",
        "produced",
        "prompt_tokens",
    )

    def __init__(self, key: Hashable, prompt_tokens: int, output_tokens: int, chain: Chain, priority: int = 0) -> None:
        if prompt_tokens < 1 or output_tokens < 1:
            raise AssertionError("a request has at least one prompt token and one output token")
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.chain = chain  # hashes of prompt and output blocks
        self.priority = priority  # higher goes first
        self.adapter = ""  # a LoRA adapter; its content hashes differ from those of others
        self.arrival = 0
        self.computed = 0  # tokens whose KV is held
        self.produced = 0  # output tokens
        self.cached_tokens = -1  # of the context, found in the cache when first admitted; -1: not admitted yet
        self.host_cached_tokens = 0  # behind those, found in the host's tier
        self.holding: Holding | None = None  # set while it runs

    @property
    def context(self) -> int:
        """Tokens known: the next output token can be produced once all of them are computed."""
        return self.prompt_tokens + self.produced

    @property
    def missing(self) -> int:
        """Tokens to compute before the next output token."""
        return self.prompt_tokens + self.produced - self.computed


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration. Each of `produced` has one new output token, its `produced`-th; `finished` are those whose token was the last.

    Or a stride of `iterations`: each of `produced` has one new token from each of them, and `finished` ended with the last one."""

    iterations: int = 1
    duration_ns: int
    work: StepWork  # what it computed
    produced: list[Request]
    finished: list[Request]
    retracted: list[Request]
    kv_events: list[KvEvent]
    copied_blocks: int = 0  # from the host's tier
    adapters_loaded: int = 0


class Batching:
    """The model. Invariant: `len(running) <= slots`, `waiting + running <= slots + queue_max`, blocks held == blocks used."""

    def __init__(self, config: BatchingConfig, law: StepLaw) -> None:
        if not 1 <= config.slots <= config.tokens_per_step:
            raise AssertionError("an iteration must have a token for each slot")
        self.config = config
        self.law = law
        kept_max = int(config.blocks * config.kept_share)
        self.cache = KvCache(config.blocks, eviction=config.eviction, kept_max=kept_max, host_blocks=config.host_blocks)
        self.adapters = Adapters(config.adapters_max)
        self._copied = self._loaded = 0  # blocks and adapters, for the iteration that is planned
        self._waiting: list[tuple[int, int, Request]] = []  # (-priority, arrival, request), sorted
        self._running: dict[int, Request] = {}  # by arrival, in order of admission
        self._arrivals = 0
        self._head_fits = True  # False: the first waiting request did not fit and nothing was freed since
        self._planned: Stride | None = None  # the last one, until something happens

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def submit(self, request: Request) -> Refusal | None:
        """Take a request into the queue, or say why not. What was planned as a stride is advanced before, as far as it has begun."""
        if self._blocks_of(request.prompt_tokens + request.output_tokens) > self.config.blocks:
            return Refusal.TOO_LONG
        if request.adapter and not self.config.adapters_max:
            return Refusal.NO_ADAPTERS
        if len(self._waiting) + len(self._running) >= self.config.slots + self.config.queue_max:
            return Refusal.QUEUE_FULL
        self._arrivals += 1
        request.arrival = self._arrivals
        self._enqueue(request)
        return None

    def abort(self, request: Request) -> None:
        """Forget a request, wherever it is. One that has finished or was aborted is ignored."""
        if self._running.get(request.arrival) is request:
            del self._running[request.arrival]
            self._release(request)
            self._planned = None
            return
        place = (-request.priority, request.arrival, request)
        index = bisect_left(self._waiting, place[:2], key=_rank)
        if index < len(self._waiting) and self._waiting[index][2] is request:
            del self._waiting[index]
            self._head_fits = True
            self._planned = None

    def keep(self, request: Request, until_ns: int) -> int:
        """Keep the KV of a request, running or finished, for whoever goes on from it: KvCache.keep. Returns how many blocks are kept."""
        return self.cache.keep(request.chain, (request.context - 1) // self.config.block_tokens, until_ns)

    def step(self) -> Step:
        """Run one iteration. Call it only when not idle."""
        self._planned = None
        self._copied = self._loaded = 0
        retracted = self._make_room()
        shares, work = self._plan()
        produced, finished = self._advance(shares)
        computing_ns, copying_ns = step_ns(self.law, work), self._copied * self.config.host_block_ns
        return Step(
            duration_ns=max(computing_ns, copying_ns) + self._loaded * self.config.adapter_load_ns,
            work=work,
            produced=produced,
            finished=finished,
            retracted=retracted,
            kv_events=self.cache.take_events(),
            copied_blocks=self._copied,
            adapters_loaded=self._loaded,
        )

    def stride(self) -> Stride | None:
        """How many iterations only decode from here, at most until the first request finishes, and how long they take. None: the next one
        prefills, admits or retracts, or there is none: call `step`. Changes nothing."""
        running = self._running.values()
        if not running or (self._head_fits and self._waiting and len(running) < self.config.slots):
            return None
        width = self.config.block_tokens
        context, left = 0, self.config.blocks * width
        rows: Rows = {}
        for request in running:
            computed, produced, holding = request.computed, request.produced, request.holding
            phase = -(computed + 1) % width
            if request.prompt_tokens + produced - computed != 1 or holding is None:
                return None
            if phase == width - 1 and holding.blocks * width > computed:
                return None  # the last token of a prefill, whose block it has already
            context += computed
            left = min(left, request.output_tokens - produced)
            if phase in rows:
                rows[phase].append((holding, request.chain))
            else:
                rows[phase] = [(holding, request.chain)]
        iterations = longest(rows, width, left, self.cache.free + self.cache.cached)
        if iterations == 0:
            return None
        self._planned = planned(self.law, len(running), context, iterations, rows)
        return self._planned

    def advance(self, stride: Stride, iterations: int) -> Step:
        """Run the first `iterations` of `stride`: the same as so many single steps, but for the rounding of `duration_ns`."""
        if stride is not self._planned:
            raise AssertionError("something has happened since this stride was planned")
        if not 1 <= iterations <= stride.iterations:
            raise AssertionError(f"{iterations} iterations of a stride of {stride.iterations}")
        self._planned = None
        fill(self.cache, stride.rows, self.config.block_tokens, iterations)
        produced = list(self._running.values())
        finished = []
        for request in produced:
            request.computed += iterations
            request.produced += iterations
            if request.produced == request.output_tokens:
                finished.append(request)
                del self._running[request.arrival]
                self._release(request)
        return Step(
            iterations=iterations,
            duration_ns=stride.ns(iterations),
            work=stride.work_of(iterations),
            produced=produced,
            finished=finished,
            retracted=[],
            kv_events=self.cache.take_events(),
        )

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.config.block_tokens)

    def _enqueue(self, request: Request) -> None:
        insort(self._waiting, (-request.priority, request.arrival, request), key=_rank)
        self._head_fits = True
        self._planned = None

    def _release(self, request: Request) -> None:
        if request.holding is None:
            raise AssertionError(f"{request.key} runs without blocks")
        self.cache.release(request.holding)
        self.adapters.release(request.adapter)
        request.holding = None
        request.computed = 0
        self._head_fits = True

    def _make_room(self) -> list[Request]:
        """Give every running request the blocks for its context; retract the youngest while they are not there."""
        retracted: list[Request] = []
        for request in sorted(self._needy(), key=_age):
            while request.holding is not None and not self._grow(request.holding, request.context):
                victim = max(self._running.values(), key=_age)
                del self._running[victim.arrival]
                self._release(victim)
                self._enqueue(victim)
                retracted.append(victim)
        return retracted

    def _needy(self) -> list[Request]:
        """Running requests whose newest token lies beyond their last block."""
        width = self.config.block_tokens
        return [r for r in self._running.values() if r.holding is not None and r.context > r.holding.blocks * width]

    def _grow(self, holding: Holding, tokens: int) -> bool:
        return self.cache.grow(holding, self._blocks_of(tokens) - holding.blocks)

    def _plan(self) -> tuple[list[tuple[Request, int]], StepWork]:
        """Share the iteration's tokens out, and sum up what that costs."""
        shares = [(r, 1) for r in self._running.values() if r.prompt_tokens + r.produced - r.computed == 1]  # `missing`, without the calls
        context = sum([request.computed for request, _ in shares])
        pairs = context + len(shares)
        budget = self.config.tokens_per_step - len(shares)
        for request in self._prefills():
            tokens = min(request.missing, budget)
            shares.append((request, tokens))
            context += request.computed
            pairs += attended(tokens, request.computed)
            budget -= tokens
            if budget == 0:
                break
        new_tokens = self.config.tokens_per_step - budget
        return shares, StepWork(new_tokens=new_tokens, context_tokens=context, attended_pairs=pairs, requests=len(shares))

    def _prefills(self) -> Iterator[Request]:
        """Running requests in prefill, then waiting ones, each admitted only when it is asked for."""
        yield from [request for request in self._running.values() if request.missing > 1]
        while (request := self._admit()) is not None:
            yield request

    def _admit(self) -> Request | None:
        """The first waiting request, now running, if there is room for it."""
        if not self._head_fits or not self._waiting or len(self._running) >= self.config.slots:
            return None
        place = self._next()
        if place is None or not self._fits(request := self._waiting[place][2]):
            self._head_fits = False
            return None
        del self._waiting[place]
        self._loaded += self.adapters.hold(request.adapter)
        self._running[request.arrival] = request
        return request

    def _next(self) -> int | None:
        """Where the first waiting request is whose adapter has a place."""
        if not self.config.adapters_max:
            return 0
        return next((place for place, (_, _, request) in enumerate(self._waiting) if self.adapters.has_room(request.adapter)), None)

    def _fits(self, request: Request) -> bool:
        """Give a request the blocks of its context, and what is known of them. False: they do not fit."""
        cache, width = self.cache, self.config.block_tokens
        limit = (request.context - 1) // width
        matched = cache.match(request.chain, limit)
        copied = cache.match_host(request.chain, matched, limit)
        holding = cache.hold(request.chain, matched, request.priority)
        needed, spare = self._blocks_of(request.context) - matched, len(self._running)
        if needed + spare > cache.free + cache.cached or not cache.restore(holding, request.chain, needed, copied):
            cache.release(holding)
            return False
        self._copied += copied
        request.holding = holding
        request.computed = (matched + copied) * width
        if request.cached_tokens < 0:
            request.cached_tokens, request.host_cached_tokens = matched * width, copied * width
        return True

    def _advance(self, shares: list[tuple[Request, int]]) -> tuple[list[Request], list[Request]]:
        """Count the computed tokens, seal blocks that became full, and produce a token for each request whose context is complete."""
        produced: list[Request] = []
        finished: list[Request] = []
        block_tokens = self.config.block_tokens
        for request, tokens in shares:
            before = request.computed
            request.computed = computed = before + tokens
            if computed // block_tokens > before // block_tokens:
                self._seal(request)
            if computed < request.prompt_tokens + request.produced:
                continue
            request.produced += 1
            produced.append(request)
            if request.produced == request.output_tokens:
                finished.append(request)
                del self._running[request.arrival]
                self._release(request)
        return produced, finished

    def _seal(self, request: Request) -> None:
        holding = request.holding
        if holding is None:
            raise AssertionError(f"{request.key} runs without blocks")
        first, behind = len(holding.sealed), request.computed // self.config.block_tokens
        self.cache.seal_all([(holding, request.chain[index]) for index in range(first, behind)])


def _rank(place: tuple[int, int, Request]) -> tuple[int, int]:
    return place[:2]


def _age(request: Request) -> tuple[int, int]:
    """Sorts the one to keep longest first: higher priority, then earlier arrival."""
    return (-request.priority, request.arrival)
