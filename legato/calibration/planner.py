"""What NVIDIA Dynamo measured for its planner, as a check: none of it is fitted.

Llama 3.1 8B with weights in FP8 on one H200 under vLLM, from the ai-dynamo repository (Apache-2.0): the TTFT of a prompt alone, by its
length; the time per token of batches that only decode, by context and by how full the KV is. `max_kv_tokens`, 945,029, says that the KV
has two bytes per value: so many tokens then take 124 GB, all that the GPU has beside the weights.
"""

from pathlib import Path

import msgspec
import numpy as np

from legato.calibration.fit import Cell
from legato.calibration.loop import Array, schedule
from legato.calibration.points import Loop, Point
from legato.calibration.profiles import DECODE, Profile
from legato.calibration.steps import Steps
from shared.core.engine_law import PRECISIONS, Layout, demand_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import gpus, models

FOLDER = "timing/dynamo_planner/H200_TP1P_TP1D"
MODEL, GPU, ENGINE = "llama-3.1-8b", "h200", "vllm"
PRECISION = msgspec.structs.replace(PRECISIONS["fp8"], kv=2.0)
TOKENS_PER_STEP = 8192  # vLLM's default on GPUs of that size
MS = 1e-3


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a cell, as shares: (median of the absolute ones, median of the signed logarithms)."""

    name: str
    prompts: int
    first: tuple[float, float]
    batches: int
    token: tuple[float, float]


def check(folder: Path, constants: Array) -> Check:
    """How far off `constants` are. Raises LegatoError where `folder` has other tables than Dynamo's."""
    try:
        with np.load(folder / "selected_prefill_interpolation/raw_data.npz") as table:
            prompts, first_s = table["prefill_isl"].tolist(), table["prefill_ttft"] * MS
        with np.load(folder / "selected_decode_interpolation/raw_data.npz") as table:
            context, token_s = table["y_context_length"] * 1.0, table["z_itl"] * MS
            requests = np.maximum(1.0, np.round(table["x_kv_usage"] * table["max_kv_tokens"] / context))
    except (OSError, KeyError, ValueError) as error:
        raise LegatoError(
            f"{folder} does not hold a profile of Dynamo's planner (raw_data.npz of prefill and decode): {error!r}"
        ) from error
    firsts = _firsts(prompts, constants) - np.log(first_s)
    tokens = _tokens(requests, context, constants) - np.log(token_s)
    return Check(
        name=f"{MODEL}@{GPU}:{ENGINE}",
        prompts=len(firsts),
        first=(float(np.median(np.abs(np.expm1(firsts)))), float(np.median(firsts))),
        batches=len(tokens),
        token=(float(np.median(np.abs(np.expm1(tokens)))), float(np.median(tokens))),
    )


def _firsts(prompts: list[int], constants: Array) -> Array:
    """Logarithms of the TTFT of each prompt alone: a closed loop of one client."""
    demand = demand_of(models()[MODEL].shape, gpus()[GPU].gpu, Layout(), PRECISION)
    loops = [Loop(prompt_tokens=n, output_tokens=2, clients=1, shortest=1.0, tokens_per_step=TOKENS_PER_STEP) for n in prompts]
    points = [
        Point(model=MODEL, gpu=GPU, engine=ENGINE, loop=loop, demand=demand, poll_steps=0, stream_steps=0, first_s=1.0, token_s=1.0)
        for loop in loops
    ]
    return Cell(points, {loop: schedule(loop) for loop in loops}).predict(constants)[: len(points)]


def _tokens(requests: Array, context: Array, constants: Array) -> Array:
    """Logarithms of the seconds of iterations that decode so many requests of such contexts."""
    steps = Profile(
        model=MODEL,
        gpu=GPU,
        engine=ENGINE,
        demand=demand_of(models()[MODEL].shape, gpus()[GPU].gpu, Layout(), PRECISION),
        new=requests,
        context=requests * context,
        pairs=requests * (context + 1),
        requests=requests,
        kind=[DECODE] * len(requests),
        seconds=np.ones(len(requests)),
    )
    return Steps(steps).predict(constants)
