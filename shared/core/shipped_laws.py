"""Laws by name: `<model>@<gpu>[x<tensor parallel>][:<engine>]`, as `llama-3.1-8b@h100`, `deepseek-v3@h200x8:sglang`.

The numbers lie beside, in calibrated/: models.toml (config facts), gpus.toml (data sheets) and one file per GPU with the constants that
`legato calibrate` fitted, their source, date and error (docs/calibration.md). Files of this package are read, and nothing else.
"""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from shared.core.engine_law import PRECISIONS, Efficiency, Front, Gpu, Layout, Precision, demand_of, kv_blocks, kv_bytes_per_token, law_of
from shared.core.errors import LegatoError
from shared.core.model_shape import ModelShape, shape_of
from shared.core.step_law import LLAMA_8B_KV_BYTES, PRESETS, StepLaw, preset

T = TypeVar("T")
ENGINES = ("sglang", "vllm", "trtllm")  # the first that was measured on a GPU is meant where none is named
NAME = re.compile(r"(?P<model>[^@]+)@(?P<gpu>[a-z0-9-]+?)(x(?P<tensor>[1-9][0-9]?))?(:(?P<engine>[a-z]+))?")


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of models.toml."""

    shape: ModelShape
    precision: str  # a key of PRECISIONS
    aliases: list[str]


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of gpus.toml."""

    gpu: Gpu
    aliases: list[str]


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of one engine on one GPU. `points`: how many measured ones lie behind them; 0: those of the engine on other GPUs."""

    efficiency: Efficiency
    front: Front
    points: int


class NamedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for."""

    law: StepLaw
    front: Front
    blocks: int  # KV blocks of 16 tokens that fit beside the weights
    token_bytes: float  # of KV that one GPU keeps per token


@cache
def models() -> dict[str, KnownModel]:
    """All models, by name."""
    return {
        name: KnownModel(shape=shape_of(entry["config"]), precision=entry["precision"], aliases=entry["as"])
        for name, entry in _table("models").items()
    }


@cache
def gpus() -> dict[str, KnownGpu]:
    """All GPUs, by name."""
    return {
        name: KnownGpu(gpu=msgspec.convert({key: value for key, value in entry.items() if key != "as"}, Gpu), aliases=entry["as"])
        for name, entry in _table("gpus").items()
    }


@cache
def fitted(gpu: str) -> dict[str, Fitted]:
    """The constants for a GPU, by engine."""
    return {name: msgspec.convert(entry, Fitted) for name, entry in _table(f"fit-{gpu}")["engine"].items()}


def named_engine(name: str) -> NamedEngine:
    """The engine of that name. Raises LegatoError, saying what there is."""
    match = NAME.fullmatch(name)
    if match is None:
        raise LegatoError(f"no step law is called {name!r}; there are {', '.join(sorted(PRESETS))}, and <model>@<gpu>[x<GPUs>][:<engine>]")
    model, gpu = _known(models(), match["model"], "model"), _known(gpus(), match["gpu"], "GPU")
    layout = Layout(tensor=int(match["tensor"] or 1))
    constants = _constants(match["gpu"], match["engine"])
    precision = PRECISIONS[model.precision]
    blocks = kv_blocks(model.shape, gpu.gpu, layout, precision)
    if blocks < 1:
        raise LegatoError(f"{match['model']} in {model.precision} does not fit on {layout.gpus} {match['gpu']}: {_fitting(model, gpu.gpu)}")
    law = law_of(demand_of(model.shape, gpu.gpu, layout, precision), constants.efficiency)
    return NamedEngine(law=law, front=constants.front, blocks=blocks, token_bytes=kv_bytes_per_token(model.shape, layout.tensor, precision))


def law_called(name: str) -> StepLaw:
    """The law of a preset or of a model on a GPU. Raises LegatoError, saying what there is."""
    return preset(name) if name in PRESETS else named_engine(name).law


def kv_token_bytes(name: str) -> float:
    """Bytes of KV that one GPU keeps per token of context, by the same names. Those of `instant` weigh nothing."""
    if name in PRESETS:
        return 0.0 if name == "instant" else LLAMA_8B_KV_BYTES
    return named_engine(name).token_bytes


def precision_of(name: str, shape: ModelShape) -> Precision:
    """The precision that a table calls bf16, fp8, fp4 or int4. 4-bit checkpoints of mixtures of experts leave attention in bf16."""
    return PRECISIONS[f"{name}-experts" if shape.experts and name in ("fp4", "int4") else name]


def _constants(gpu: str, engine: str | None) -> Fitted:
    there = fitted(gpu)
    if engine is not None:
        return _known(there, engine, "engine")
    return there[next((each for each in ENGINES if there[each].points), ENGINES[0])]


def _known(table: dict[str, T], name: str, kind: str) -> T:
    if name not in table:
        raise LegatoError(f"there is no {kind} {name!r}; there are {', '.join(sorted(table))}")
    return table[name]


def _fitting(model: KnownModel, gpu: Gpu) -> str:
    precision = PRECISIONS[model.precision]
    fits = [count for count in (2, 4, 8, 16) if kv_blocks(model.shape, gpu, Layout(tensor=count), precision) > 0]
    return f"it does on {fits[0]}" if fits else "not on 16 either"


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files("shared.core.calibrated").joinpath(f"{name}.toml").read_text())
