"""What a model's tokens have cost lately, by the reports of its attempts: for engines that do not state their speeds. Pure.

An attempt's bill is divided by time: until its first token it computed its prompt, then its output.
    price of a prompt token = sum(usd x ttft / time in the engine) / sum(prompt + resumed - cached tokens)
    price of an output token = sum(usd x (1 - ttft / time in the engine)) / sum(generated tokens)
Each sum forgets with every report (exponentially weighted). So prices follow the load: side by side with others a token costs less.
Constant: KEEP, own choice, weighs the last fifty attempts.
"""

import msgspec

from shared.contracts.steps import AttemptEnded

KEEP = 0.98


class Prices(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one model; the sums above."""

    prompt_usd: float = 0.0
    prompt_tokens: float = 0.0
    output_usd: float = 0.0
    output_tokens: float = 0.0

    @property
    def of_prompt_token(self) -> float:
        """In dollars; 0: not known."""
        return self.prompt_usd / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def of_output_token(self) -> float:
        """Likewise."""
        return self.output_usd / self.output_tokens if self.output_tokens else 0.0


def learn(prices: Prices, event: AttemptEnded) -> None:
    """From one report; from none that says nothing of time or money."""
    in_engine_ms, usage = event.total_ms - event.queued_ms, event.usage
    if event.usd <= 0 or not 0 < event.ttft_ms <= in_engine_ms:
        return
    share = event.ttft_ms / in_engine_ms
    computed = max(1, usage.prompt_tokens + event.resumed_tokens - usage.cached_tokens)
    prices.prompt_usd = prices.prompt_usd * KEEP + event.usd * share
    prices.prompt_tokens = prices.prompt_tokens * KEEP + computed
    generated = usage.output_tokens - event.resumed_tokens
    if generated > 1:  # the first one came with the prompt
        prices.output_usd = prices.output_usd * KEEP + event.usd * (1 - share)
        prices.output_tokens = prices.output_tokens * KEEP + generated
