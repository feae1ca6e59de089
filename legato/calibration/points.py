"""Measured points: what ran, and the mean time to the first token and per output token that were measured.

The table is the `silicon_sample.csv` of NVIDIA's aiconfigurator project (Apache-2.0): closed loops of a constant number of clients, most of
them published by InferenceX (SemiAnalysis), the rest measured by aiconfigurator's authors with AIPerf. Traps:
- `batch_size` is per data-parallel rank in some rows and the whole concurrency in others; `silicon_data_source` names the concurrency;
- expert parallelism is written as tp_size == moe_tp_size * moe_ep_size with moe_tp_size == moe_ep_size == GPUs;
- files called <model>-gap-analysis.csv hold InferenceX's measurements again (123, rounded to 0.01 ms); aiconfigurator's own are below
  a folder aic-auto-gap-analysis;
- InferenceX draws lengths evenly from 80% to 100% of isl and osl, and its launch scripts set budgets and polling per model.
"""

import csv
import re
from collections import Counter
from pathlib import Path

import msgspec

from shared.core.engine_law import PRECISIONS, Demand, Layout, demand_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import gpus, models, precision_of

SATURATED_MS = 10_000.0
TENSOR_MAX, GPUS_MAX = 8, 16  # what one engine of the table can be; wider rows are sums over several
COLUMNS = (
    "silicon_data_source",
    "backend",
    "model_path",
    "system",
    "precision",
    "mode",
    "isl",
    "osl",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop on one rank: `clients` that each send the next request when the last is answered."""

    prompt_tokens: int
    output_tokens: int
    clients: int
    shortest: float  # lengths are drawn evenly from this share of the two above
    tokens_per_step: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point. Times in seconds."""

    model: str
    gpu: str
    engine: str
    loop: Loop
    demand: Demand
    poll_steps: int  # iterations between two looks for new requests, less 1
    stream_steps: int  # tokens that leave together, where the engine holds the first back
    first_s: float
    token_s: float
    speculative: bool = False  # ran with multi-token prediction, which the table does not name


def read_points(path: Path) -> tuple[list[Point], Counter[str]]:
    """All points that the model speaks about, and how many others there are, by reason."""
    names = {alias: name for name, model in models().items() for alias in model.aliases}
    systems = {alias: name for name, gpu in gpus().items() for alias in gpu.aliases}
    points: list[Point] = []
    left_out: Counter[str] = Counter()
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise LegatoError(f"{path} has no column {', '.join(missing)}: it is a table like aiconfigurator's silicon_sample.csv")
        for row in rows:
            found = _point(row, names, systems)
            if isinstance(found, str):
                left_out[found] += 1
            else:
                points.append(found)
    return points, left_out


def _point(row: dict[str, str], names: dict[str, str], systems: dict[str, str]) -> Point | str:
    """A point, or why it is none."""
    alias = row["model_path"].rpartition("/")[2]
    if row["mode"] != "agg":
        return "prefill and decode on different GPUs"
    if alias not in names or row["system"] not in systems:
        return "a model or GPU that is not known"
    model, gpu = models()[names[alias]], gpus()[systems[row["system"]]].gpu
    layout = _layout(row, bool(model.shape.experts))
    if layout is None:
        return "a layout that cannot be one engine"
    if float(row["silicon_ttft_ms"]) > SATURATED_MS:
        return f"saturated: TTFT above {SATURATED_MS / 1000:.0f} s"
    published = "auto-gap-analysis" not in row["silicon_data_source"]
    named = _CONCURRENCY.search(row["silicon_data_source"])
    clients = int(named[1]) if named else int(row["batch_size"]) * layout.data
    precision = PRECISIONS["mxfp4-experts"] if model.precision == "mxfp4-experts" else None
    if precision is None:
        precision = precision_of("bf16" if not row["gemm_quant_mode"] else row["precision"] or "bf16", model.shape)
    budget, poll, stream = _settings(row, names[alias], clients) if published else (8192, 1, 0)
    per_rank = max(1, round(clients / layout.data))
    return Point(
        model=names[alias],
        gpu=systems[row["system"]],
        engine=row["backend"],
        loop=Loop(
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            clients=per_rank,
            shortest=0.8 if published else 1.0,
            tokens_per_step=min(budget, per_rank * int(row["isl"])),
        ),
        demand=demand_of(model.shape, gpu, layout, precision),
        poll_steps=poll - 1,
        stream_steps=stream,
        first_s=float(row["silicon_ttft_ms"]) / 1000,
        token_s=float(row["silicon_tpot_ms"]) / 1000,
        speculative=_speculative(row),
    )


def _speculative(row: dict[str, str]) -> bool:
    """TensorRT-LLM's DeepSeek of one version and of one day (InferenceX's perf-changelog.yaml, pull requests 392, 632, 642)."""
    if row["backend"] != "trtllm" or "DeepSeek" not in row["model_path"]:
        return False
    return row.get("backend_version") == "1.2.0rc6.post3" or "measured=2026-01-14" in row["silicon_data_source"]


def _layout(row: dict[str, str], experts: bool) -> Layout | None:
    tensor, data, moe_tensor, moe_expert = (
        int(row[name] or 1) or 1 for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    if not experts:
        data = 1
    elif moe_tensor == moe_expert > 1 and tensor * data == moe_tensor * moe_expert:
        tensor, data = (moe_tensor, 1) if data == 1 else (1, moe_tensor)
    elif tensor == data > 1 and moe_expert == tensor * data:
        tensor = 1
    elif moe_tensor * moe_expert not in (1, tensor * data):
        return None
    return Layout(tensor=tensor, data=data) if tensor <= TENSOR_MAX and tensor * data <= GPUS_MAX else None


def _settings(row: dict[str, str], model: str, clients: int) -> tuple[int, int, int]:
    """(tokens per iteration, iterations between looks for requests, tokens that leave together) of InferenceX's launch scripts
    (github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node, read in August 2026)."""
    prompt, engine = int(row["isl"]), row["backend"]
    if engine == "vllm":
        return (2 * prompt if model == "minimax-m2.5" else 8192), 1, 0
    if engine == "trtllm":
        return (-(-(clients + prompt + 64) // 64) * 64 if model == "deepseek-v3" else 20_000), 1, 10
    polls_rarely = model in ("deepseek-v3", "qwen3.5-397b-a17b") and row["system"] != "h200_sxm"
    poll = 1 if not polls_rarely else 30 if clients >= 16 else 10
    if model == "qwen3.5-397b-a17b" or (model == "deepseek-v3" and row["precision"] == "fp4"):
        return 16_384, poll, 0
    return 32_768, poll, 0
