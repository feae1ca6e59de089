"""Grammars (json_schema, regex, ebnf) and min_new_tokens in a SGLang that is started with --skip-tokenizer-init.

SGLang leaves both out there. Yet text is what Legato spares it, for the sake of one process less per token; a grammar needs the
vocabulary once, in the scheduler, and min_new_tokens only the ids that end an output, which SGLang has from the model's settings. Stop
strings stay refused: they are Legato's.

Entry point: `hooks` (group sglang.srt.plugins). Written against SGLang 0.5.23.
"""

from typing import Any

GRAMMARS_MAX, GRAMMAR_BYTES_MAX = 256, 1 << 30  # compiled ones that are kept. Clients choose them; 1,200 optional properties take 0.2 GB


class NoTokenizer:
    """What the scheduler looks up in a tokenizer when there are no stop strings: further ids to stop at. There are none, so that an
    output ends where the model's settings say, with and without min_new_tokens."""

    eos_token_id = None
    additional_stop_token_ids = None


def give_requests_no_tokenizer(_result: Any, scheduler: Any) -> None:
    """After Scheduler.init_tokenizer: `scheduler.tokenizer` is handed to every request."""
    if scheduler.tokenizer is None:
        scheduler.tokenizer = NoTokenizer()


def allow_min_new_tokens(original: Any, tokenizer: Any, stops: Any, stop_regexes: Any, min_new_tokens: int = 0) -> None:
    """Around raise_if_tokenizer_required, SGLang's check at the door."""
    original(tokenizer, stops, stop_regexes)


def load_backend(_result: Any, grammar_manager: Any, scheduler: Any) -> None:
    """After GrammarManager.__init__: the backend that --grammar-backend names, with the model's vocabulary."""
    from sglang.srt.constrained.base_grammar_backend import create_grammar_backend
    from sglang.srt.runtime_context import get_model, get_serving
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    if grammar_manager.grammar_backend is not None:
        return
    serving, model = get_serving(), scheduler.model_config
    tokenizer = get_tokenizer(
        serving.tokenizer_path, tokenizer_mode=serving.tokenizer_mode, trust_remote_code=get_model().trust_remote_code
    )
    grammar_manager.grammar_backend = create_grammar_backend(
        grammar_manager.server_args, tokenizer, model.vocab_size, model.hf_eos_token_id, think_end_ids=model.think_end_ids
    )


def forget_grammars(_result: Any, backend: Any, _key: Any, _grammar: Any) -> None:
    """After BaseGrammarBackend.set_cache, which keeps all that ever was asked for. Requests under way hold theirs."""
    compiled = [grammar.ctx for grammar in backend.cache.values() if hasattr(grammar, "ctx")]  # the others are refusals
    if len(backend.cache) > GRAMMARS_MAX or sum(each.memory_size_bytes for each in compiled) > GRAMMAR_BYTES_MAX:
        backend.reset()


def hooks() -> None:
    """Hook the four functions above into SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.init_tokenizer", give_requests_no_tokenizer, HookType.AFTER)
    HookRegistry.register("sglang.srt.sampling.sampling_params.raise_if_tokenizer_required", allow_min_new_tokens, HookType.AROUND)
    HookRegistry.register("sglang.srt.constrained.grammar_manager.GrammarManager.__init__", load_backend, HookType.AFTER)
    HookRegistry.register("sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend.set_cache", forget_grammars, HookType.AFTER)
