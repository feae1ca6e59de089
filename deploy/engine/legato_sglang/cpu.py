"""Serve on a machine without a GPU, with the SGLang wheel as it is and no compiled CPU kernels.

Entry points: `activate` (group sglang.srt.platforms) offers the platform below when there is no CUDA device; `hooks` (group
sglang.srt.plugins) makes `--enable-deterministic-inference` work there. On a machine with a GPU both do nothing.
Import this module before `transformers` in every script of the engine's environment: see `_declare_torchvision_operators`.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

TORCHVISION_OPERATORS = ("nms", "qnms")  # those that torchvision 0.28's Python half registers shapes for at import


def _declare_torchvision_operators() -> None:
    """torchvision's wheel is built for CUDA: beside a CPU build of torch its library does not load, and then its import fails
    for want of two operators. Declared here without code, they let it import; nothing that Legato serves calls them."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
        except OSError:
            continue
        return
    declared = torch.library.Library("torchvision", "DEF")
    for name in TORCHVISION_OPERATORS:
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_declared"] = declared  # an operator lives as long as its library object


_declare_torchvision_operators()


def activate() -> str | None:
    """The platform's qualified name where it applies, else None (SGLang then finds its own)."""
    return None if torch.cuda.is_available() else "legato_sglang.cpu.HostCpuPlatform"


def __getattr__(name: str) -> Any:
    """Build the platform class when it is first asked for: SGLang cannot be imported while it is still reading entry points."""
    if name != "HostCpuPlatform":
        raise AttributeError(name)
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import SRTPlatform

    class HostCpuPlatform(CpuDeviceMixin, SRTPlatform):
        """A CPU whose operators are PyTorch's own."""

        _enum = PlatformEnum.OOT

        def get_default_attention_backend(self) -> str:
            return "torch_native"

        def get_dispatch_key_name(self) -> str:
            return "native"

        def is_pin_memory_available(self, device: Any = None) -> bool:
            return False

    globals()[name] = HostCpuPlatform
    return HostCpuPlatform


def seeded_sample(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token per row by the Gumbel-max trick (Gumbel 1954; argmax of log p + Gumbel noise is a draw from p).

    The noise is hashed from (seed, position, column) alone, so a row's draw is the same whatever else is in the batch, and a
    resumed request goes on with the same noise. `logprobs`: [rows, vocabulary]; `seed`, `positions`: [rows]; returns [rows, 1].
    The constants are odd 32- and 64-bit multipliers without a meaning of their own; the mixing is that of a multiply-xorshift hash.
    """
    column = torch.arange(logprobs.shape[1], dtype=torch.int64)
    mixed = seed.to(torch.int64)[:, None] * 0x9E3779B1 + positions.to(torch.int64)[:, None] * 0x85EBCA77 + column * 0xC2B2AE3D
    for multiplier in (0x2545F4914F6CDD1D, 0x27D4EB2F165667C5):
        mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * multiplier  # the mask makes the signed shift a logical one
    uniform = (((mixed >> 11) & 0x1FFFFFFFFFFFFF).to(torch.float64) + 0.5) * 2.0**-53
    return torch.argmax(logprobs.to(torch.float64) - torch.log(-torch.log(uniform)), dim=1, keepdim=True)


def hooks() -> None:
    """Allow deterministic inference on this platform: PyTorch's attention does not depend on the batch, sampling is `seeded_sample`."""
    if torch.cuda.is_available():
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    replacements: dict[str, Callable[..., Any]] = {
        "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode": _nothing,  # its kernels are CUDA's
        "sglang.srt.layers.sampler.multinomial_with_seed": seeded_sample,
    }
    for target, replacement in replacements.items():
        HookRegistry.register(target, replacement, HookType.REPLACE)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None
