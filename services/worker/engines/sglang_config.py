"""What a worker must know to start SGLang, and the command line that follows from it. Written against SGLang 0.5.23."""

import json
import os
from pathlib import Path
from typing import Literal

import msgspec

from shared.contracts.ids import ModelName


class SglangConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one SGLang engine. Paths may be relative to the working directory. Zeros mean "as SGLang decides"."""

    model: ModelName = ModelName("smollm2-135m")  # the name that it is served under
    model_path: str = "models/smollm2-135m"
    tool_parser: Literal["", "hermes", "llama3_json", "mistral"] = ""  # how the model writes calls (shared/core/parsing/calls.py)
    reasoning_parser: Literal["", "deepseek_r1", "qwen3"] = ""  # how it writes what it thinks (shared/core/parsing/reasoning.py)
    python: str = ".venv-engine/bin/python"  # of the engine's own environment (deploy/engine/setup.sh)
    log_dir: str = ".legato/engine"  # of sglang-<pid of the worker>.log
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"  # bfloat16 is faster, but near ties may resolve differently when a generation is resumed
    page_size: int = 16  # tokens of a KV block
    max_total_tokens: int = 8192  # KV pool, 0: as much as fits
    slots: int = 8  # requests running at once, 0: as many as fit
    threads: int = 1  # OMP_NUM_THREADS on a CPU; two busy engines with more threads than cores slow each other to a crawl
    deterministic: bool = True  # equal seeds give equal tokens whatever else runs; without it SGLang ignores seeds
    port: int = 0  # HTTP on 127.0.0.1, 0: any free one
    extra_args: list[str] = []  # given to SGLang last, so that they win
    start_timeout_s: float = 600.0  # a small model on an idle CPU takes 20 s
    stop_grace_s: float | None = None  # from SIGTERM to SIGKILL; None: 30 on a GPU, whose memory SGLang gives back, and 0 on a CPU
    token_timeout_s: float = 300.0  # longest silence of a request, its wait in SGLang's queue included


def stop_grace_s(config: SglangConfig) -> float:
    """How long SGLang may take to end by itself. All requests have ended before; it looks for the signal only every 5 s."""
    if config.stop_grace_s is not None:
        return config.stop_grace_s
    return 30.0 if config.device == "cuda" else 0.0


def command(config: SglangConfig, port: int, sockets: Path) -> list[str]:
    """The program and its arguments. `sockets`: a folder for the KV events' sockets, its path short (they hold about 100 characters)."""
    events = {
        "publisher": "zmq",
        "endpoint": events_endpoint(sockets),
        "replay_endpoint": replay_endpoint(sockets),
        "bind": True,
        "topic": "kv",
    }
    options = {
        "model-path": str(Path(config.model_path).resolve()),
        "served-model-name": config.model,
        "host": "127.0.0.1",
        "port": str(port),
        "device": config.device,
        "grammar-backend": "xgrammar",  # the others were not tried
        "dtype": config.dtype,
        "page-size": str(config.page_size),
        "kv-events-config": json.dumps(events),
        "default-priority-value": "0",
        "decode-log-interval": "8",  # decode steps between reports; KV events leave with them
        "load-snapshot-publish-interval": "1",  # /v1/loads is as fresh as the last step
        "log-level": "warning",  # a line per request would fill the disk
    }
    if config.max_total_tokens:
        options["max-total-tokens"] = str(config.max_total_tokens)
    if config.slots:
        options["max-running-requests"] = str(config.slots)
    if config.device == "cpu":
        options |= CPU_OPTIONS
    flags = [*FLAGS, "--enable-deterministic-inference"] if config.deterministic else FLAGS
    pairs = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [str(Path(config.python).absolute()), "-m", "sglang.launch_server", *pairs, *flags, *config.extra_args]


FLAGS = [
    "--enable-priority-scheduling",
    "--enable-metrics",
    "--incremental-streaming-output",  # each event carries new tokens only: a stream costs its length, not its square
    "--skip-tokenizer-init",  # token ids in, token ids out; our plug-in gives the scheduler what grammars need of a tokenizer
    "--disable-overlap-schedule",  # with it, penalties lag a token behind and a resumed request would differ
    "--sleep-on-idle",
]
CPU_OPTIONS = {  # what PyTorch alone can do (deploy/engine/README.md)
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "cuda-graph-backend-decode": "disabled",
    "cuda-graph-backend-prefill": "disabled",
    "mem-fraction-static": "0.5",
}


def environment(config: SglangConfig, scratch: Path) -> dict[str, str]:
    """The child's environment: no hub, its temporary files in `scratch`."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    ours = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    if config.device == "cpu":
        # Without the second, the first request with penalties waits half a minute for a C++ compiler, or ends the engine for want of one.
        ours |= {"OMP_NUM_THREADS": str(config.threads), "TORCHDYNAMO_DISABLE": "1"}
    return inherited | ours


def events_endpoint(sockets: Path) -> str:
    """Where KV events are published (ZeroMQ PUB)."""
    return f"ipc://{sockets}/kv"


def replay_endpoint(sockets: Path) -> str:
    """Where lost KV events can be asked for again (ZeroMQ ROUTER)."""
    return f"ipc://{sockets}/kv-replay"
