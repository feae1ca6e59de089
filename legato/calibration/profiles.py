"""Measured kernels of one layer, put together to steps: what an iteration of a whole model takes on the GPU alone.

A profile is a folder as LLMServingSim (MIT) records vLLM: `<GPU>/<model>/meta.yaml` and `tp1/` with three tables of microseconds:
`attention.csv` (a prefill chunk after a context, together with decoding requests of equal contexts), `dense.csv` (everything that costs by
the token) and `per_sequence.csv` (head and sampler). A step is then

    layers * (kernels of a layer at its tokens + attention) + embedding, last norm + head, sampler at its sequences

Each row of attention.csv is one step, except those that no engine runs: more tokens or sequences than the other tables have, or a context
for which the GPU has no room beside the weights. Traps: the kernels were run eagerly and timed one by one, so nothing is in them of
launches, gaps between kernels and the host; `layernorm` is one of two per layer; a prefill chunk is one request with one row of logits.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from legato.calibration.loop import Array
from shared.core.engine_law import PRECISIONS, Demand, Layout, demand_of, kv_blocks
from shared.core.errors import LegatoError
from shared.core.shipped_laws import gpus, models
from shared.core.step_law import attended

FOLDER = "timing/profiles"
BLOCK_TOKENS = 16
PER_LAYER = {"layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
PER_STEP = ("embedding", "final_layernorm")
PER_SEQUENCES = ("lm_head", "sampler")
DECODE, PREFILL, MIXED = "decode", "prefill", "mixed"

Curve = tuple[Array, Array]  # sizes, ascending, and seconds


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a model on one GPU: arrays of equal length, one entry a step."""

    model: str
    gpu: str
    engine: str
    demand: Demand
    new: Array
    context: Array
    pairs: Array
    requests: Array
    kind: list[str]  # DECODE, PREFILL or MIXED
    seconds: Array  # of the GPU's kernels

    def part(self, rows: NDArray[np.intp]) -> "Profile":
        """Some of the steps, by number."""
        arrays = {name: getattr(self, name)[rows] for name in ("new", "context", "pairs", "requests", "seconds")}
        return msgspec.structs.replace(self, **arrays, kind=[self.kind[row] for row in rows])


def read_profiles(folder: Path) -> list[Profile]:
    """All profiles below `folder`, in order of their paths; none where it is absent. Raises LegatoError."""
    return [read_profile(meta.parent) for meta in sorted(folder.glob("*/*/meta.yaml"))]


def read_profile(folder: Path) -> Profile:
    """The profile of `<GPU>/<model>` on one GPU. Raises LegatoError, saying what is not as expected."""
    names = {alias: name for name, model in models().items() for alias in model.aliases}
    systems = {alias: name for name, gpu in gpus().items() for alias in gpu.aliases}
    said = dict(re.findall(r"^(variant|vllm_version): *(\S+)", (folder / "meta.yaml").read_text(), re.MULTILINE))
    if said.get("variant") != "bf16" or "vllm_version" not in said:
        raise LegatoError(f"{folder}/meta.yaml says {said}: a profile of vLLM has a vllm_version, and of this command the variant bf16")
    if folder.name not in names or folder.parent.name not in systems:
        raise LegatoError(f"{folder}: no model or GPU of shared/core/calibrated is known `as` {folder.name} or {folder.parent.name}")
    model, gpu = models()[names[folder.name]].shape, gpus()[systems[folder.parent.name]].gpu
    precision = PRECISIONS["bf16"]
    try:
        dense, sequences = _curves(folder / "tp1/dense.csv", "tokens"), _curves(folder / "tp1/per_sequence.csv", "sequences")
        grid, attention = _grid(folder / "tp1/attention.csv")
        per_layer = {name: model.layers * count for name, count in PER_LAYER.items()}
        token_curve = _sum_of(dense, {**per_layer, **dict.fromkeys(PER_STEP, 1)})
        sequence_curve = _sum_of(sequences, dict.fromkeys(PER_SEQUENCES, 1))
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise LegatoError(f"{folder}/tp1 does not hold a profile (attention.csv, dense.csv, per_sequence.csv): {error!r}") from error
    chunk, before, decodes, decode_context = grid
    new, requests, context = chunk + decodes, decodes + (chunk > 0), before + decodes * decode_context
    room = kv_blocks(model, gpu, Layout(), precision) * BLOCK_TOKENS
    runs = (new <= token_curve[0][-1]) & (requests <= sequence_curve[0][-1]) & (context + new <= room)
    if not np.any(runs):
        raise LegatoError(
            f"{folder}/tp1: no step of attention.csv has as few tokens and sequences as the other tables, and a context that fits"
        )
    seconds = model.layers * attention + np.interp(new, *token_curve) + np.interp(requests, *sequence_curve)
    profile = Profile(
        model=names[folder.name],
        gpu=systems[folder.parent.name],
        engine="vllm",
        demand=demand_of(model, gpu, Layout(), precision),
        new=new,
        context=context,
        pairs=np.array([attended(int(c), int(k)) for c, k in zip(chunk, before, strict=True)]) + decodes * (decode_context + 1.0),
        requests=requests,
        kind=[(MIXED if d else PREFILL) if c else DECODE for c, d in zip(chunk, decodes, strict=True)],
        seconds=seconds,
    )
    return profile.part(np.flatnonzero(runs))


def _curves(path: Path, size: str) -> dict[str, Curve]:
    """Of each kernel: seconds by size."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            rows[row["layer"]].append((float(row[size]), float(row["time_us"]) * 1e-6))
    tables = {name: np.array(sorted(points)) for name, points in rows.items()}
    return {name: (table[:, 0], table[:, 1]) for name, table in tables.items()}


def _sum_of(curves: dict[str, Curve], times: dict[str, int]) -> Curve:
    """The kernels `times` so many each. All were measured at the same sizes."""
    sizes = curves[next(iter(times))][0]
    return sizes, np.sum([np.interp(sizes, *curves[name]) * count for name, count in times.items()], axis=0)


def _grid(path: Path) -> tuple[Array, Array]:
    """attention.csv: its four sizes as rows, and seconds."""
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    with path.open(newline="") as file:
        table = np.array([[float(row[name]) for name in columns] for row in csv.DictReader(file)]).T
    return table[:4], table[4] * 1e-6
