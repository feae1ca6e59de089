"""What an engine does in a closed loop, computed once and timed by any law.

A closed loop without thinking time has a property that makes fitting cheap: the next request comes when the last one ends, so which
iterations follow each other, and what each computes, does not depend on how long they take. The engine's own batching (shared/core) runs
once for each loop; mean TTFT and TPOT are then sums over its iterations, each weighted with how many requests wait for their first token,
or decode, while it runs:

    mean TTFT = sum of duration * (requests without a first token) / requests
    mean TPOT = sum over iterations of duration * (sum over decoding requests of 1 / (output tokens - 1)) / requests

Iterations that compute about the same are merged (within 6% in tokens and context): the means change by less than 0.1%.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from legato.calibration.points import Loop
from shared.core.batching import Batching, BatchingConfig, Request, Step
from shared.core.step_law import INSTANT, StepWork

Array = NDArray[np.float64]
PHASES = (0.6180339887498949, 0.7548776662466927)  # golden and plastic ratio: lengths spread evenly, the same in each run
ROUNDS = 10  # requests per client that benchmarks send; more than WAVES of them repeat the middle ones
SMALL, MEDIUM = 20_000, 200_000  # output tokens of all clients together, up to which 10 and 4 waves are computed
ALIKE = 0.1  # by which contexts grow in iterations that are counted as one kind
TOKENS_GRAIN, REQUESTS_GRAIN = 0.12, 0.2  # of the logarithms that are merged

NEW, CONTEXT, PAIRS, REQUESTS, TO_FIRST, PER_TOKEN = range(6)  # columns of a schedule


class _Clients:
    """The requests of a loop, and when each came, began to answer and ended, counted in iterations."""

    def __init__(self, loop: Loop, batching: Batching, total: int) -> None:
        self._loop, self._batching, self._total = loop, batching, total
        self._sent = 0
        self.came: list[int] = []
        self.began: list[int] = []
        self.ended: list[int] = []
        self.lengths: list[int] = []

    def send(self, now: int) -> None:
        """The next request, if one is left."""
        if self._sent == self._total:
            return
        number = self._sent
        self._sent += 1
        prompt = self._length(self._loop.prompt_tokens, PHASES[0] * (number + 1))
        output = max(2, self._length(self._loop.output_tokens, PHASES[1] * (number + 1)))
        for column, value in ((self.came, now), (self.began, 0), (self.ended, 0), (self.lengths, output)):
            column.append(value)
        refusal = self._batching.submit(Request(number, prompt, output, []))
        if refusal is not None:
            raise AssertionError(f"a loop's request was refused: {refusal}")

    def _length(self, longest: int, phase: float) -> int:
        return max(1, round(longest * (self._loop.shortest + (1 - self._loop.shortest) * (phase % 1))))


def schedule(loop: Loop) -> Array:
    """The merged iterations of a loop, one row each: the columns above."""
    size = loop.clients * loop.output_tokens
    waves = ROUNDS if size < SMALL else 4 if size < MEDIUM else 3
    budget = max(loop.tokens_per_step, loop.clients)
    batching = Batching(
        BatchingConfig(blocks=1 << 40, block_tokens=1 << 30, slots=loop.clients, queue_max=0, tokens_per_step=budget), INSTANT
    )
    clients = _Clients(loop, batching, waves * loop.clients)
    for _ in range(loop.clients):
        clients.send(0)
    works: list[tuple[StepWork, int]] = []  # of some iterations together, and how many they are
    while not batching.idle:
        step = _next(batching)
        works.append((step.work, step.iterations))
        for request in step.produced:
            if request.produced == 1:
                clients.began[int(str(request.key))] = len(works)
        for request in step.finished:
            clients.ended[int(str(request.key))] = len(works)
            clients.send(len(works))
    return _merged(works, *_weights(clients, loop.clients, waves, len(works)))


def _next(batching: Batching) -> Step:
    """The next iteration, or as many as only decode and are alike: no request ends before the last, contexts grow by ALIKE at most."""
    stride = batching.stride()
    if stride is None:
        return batching.step()
    alike = round(ALIKE * stride.work.context_tokens / stride.work.requests)
    return batching.advance(stride, max(1, min(stride.iterations, alike)))


def _weights(clients: _Clients, count: int, waves: int, iterations: int) -> tuple[Array, Array]:
    """Of each iteration of an entry: its share in the mean TTFT, and in the mean TPOT. The first and the last wave count once, those
    between for all others of the benchmark's rounds."""
    first, token = np.zeros(iterations + 1), np.zeros(iterations + 1)
    for number, (came, began, ended, length) in enumerate(zip(clients.came, clients.began, clients.ended, clients.lengths, strict=True)):
        middle = 0 < number // count < waves - 1
        weight = ((ROUNDS - 2) / (waves - 2) if middle else 1.0) / ROUNDS / count
        first[came] += weight
        first[began] -= weight
        token[began] += weight / (length - 1)
        token[ended] -= weight / (length - 1)
    return np.cumsum(first)[:-1], np.cumsum(token)[:-1]


def _merged(works: Iterable[tuple[StepWork, int]], first: Array, token: Array) -> Array:
    table = np.array([(work.new_tokens, work.context_tokens, work.attended_pairs, work.requests, n) for work, n in works], dtype=np.float64)
    sizes = table[:, 4]
    steps = table[:, :4] / sizes[:, None]
    logs = np.log(steps[:, [NEW, CONTEXT, REQUESTS]] + [0, 1, 0]) / [TOKENS_GRAIN, TOKENS_GRAIN, REQUESTS_GRAIN]
    _, group = np.unique(np.round(logs), axis=0, return_inverse=True)
    group = group.ravel()
    counts = np.bincount(group, sizes)
    means = [np.bincount(group, steps[:, column] * sizes) / counts for column in range(4)]
    return np.column_stack([*means, np.bincount(group, first * sizes), np.bincount(group, token * sizes)])
