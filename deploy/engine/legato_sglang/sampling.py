"""Seeded draws that depend on nothing but the request, whatever else is in its batch; and min_p among them.

SGLang hashes the noise of a seeded draw from (seed, position, column). Where no request of a batch filters (top_k, top_p), a column is a
token; where one does, and greedy ones do, it is the token's rank, for the whole batch: a seeded request then draws other tokens beside a
greedy one than alone. With min_p it does not draw at all, and the server ends. Here the noise always belongs to the token.

Entry point: `hooks` (group sglang.srt.plugins). Written against SGLang 0.5.23.
"""

from typing import Any

import torch


def draw(original: Any, *args: Any, **options: Any) -> Any:
    """Around top_k_top_p_min_p_sampling_from_probs_torch; one token per row."""
    from sglang.srt.layers.sampler import sampling_from_probs_torch  # the draw of batches that do not filter

    probs, top_ks, top_ps, min_ps, _, seeds, positions = args
    if seeds is None or options.get("return_filtered_probs"):
        return original(*args, **options)
    return sampling_from_probs_torch(filtered(probs, top_ks, top_ps, min_ps), sampling_seed=seeds, positions=positions)


def filtered(probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor) -> torch.Tensor:
    """`probs` [rows, vocabulary] with zeros where top_k, top_p or min_p rule a token out. They need no new norm: a draw by the Gumbel-max
    trick is the same for any multiple. Of equal ones the lowest token goes first, as with argmax; a top_p of 1 rules out nothing,
    although sums of rounded numbers may exceed it."""
    ranked, tokens = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    before = ranked.cumsum(dim=-1) - ranked
    within_top_p = (before <= top_ps[:, None]) | (top_ps[:, None] >= 1)
    kept = (rank < top_ks[:, None]) & within_top_p & (ranked >= ranked[:, :1] * min_ps[:, None])
    return torch.zeros_like(probs).scatter_(-1, tokens, ranked.masked_fill(~kept, 0.0))


def hooks() -> None:
    """Hook `draw` into SGLang's sampler."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch", draw, HookType.AROUND)
