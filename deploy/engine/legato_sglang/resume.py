"""Go on with a generation that another engine began, exactly.

A request whose sampling parameters hold `custom_params={"resume_len": k}` carries k tokens that were already generated at the end of
its `input_ids`; its `max_new_tokens` and `min_new_tokens` count the new ones only, so that SGLang's checks at the door hold. It
enters the scheduler in the state of a request that SGLang itself retracted and readmits: prompt = all but the last k, output =
the last k. Lengths, token stops and finish reasons then follow by themselves. What does not follow is replayed here: the grammar
and the penalties. Only new tokens (and their log-probabilities) are sent to the client.

Entry point: `hooks` (group sglang.srt.plugins). Written against SGLang 0.5.23; the names hooked are at the end of the file.
"""

from array import array
from typing import Any

import torch

LOGPROB_FIELDS = tuple(f"output_{kind}_logprobs_{part}" for kind in ("token", "top", "token_ids") for part in ("val", "idx"))


def resumed_length(sampling_params: Any, input_length: int) -> int:
    """How many tokens at the end of the input were generated before; 0 when this is no resumption (or not a sound one)."""
    custom = sampling_params.custom_params
    length = custom.get("resume_len", 0) if isinstance(custom, dict) else 0
    return length if type(length) is int and 0 < length < input_length else 0


def create_request(original: Any, scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Scheduler._create_generation_req(received, rid, text, input_ids, sampling_params, ...)."""
    if len(args) != 4 or kwargs.get("session") is not None:  # SGLang's sessions keep their own history
        return original(scheduler, received, *args, **kwargs)
    rid, text, input_ids, sampling_params = args
    length = resumed_length(sampling_params, len(input_ids))
    if not length:
        return original(scheduler, received, *args, **kwargs)
    request = original(scheduler, received, rid, text, input_ids[:-length], sampling_params, **kwargs)
    request.output_ids = array("q", input_ids[-length:])
    for limit in ("max_new_tokens", "min_new_tokens"):  # of the whole output from here on
        if getattr(sampling_params, limit):
            setattr(sampling_params, limit, getattr(sampling_params, limit) + length)
    request.resumed_length = request.send_token_offset = length  # the client has these: send only new ones
    return request


def queue_request(original: Any, grammar_manager: Any, request: Any) -> bool:
    """Around GrammarManager.process_req_with_grammar, the first step after the request's fields are complete."""
    length = getattr(request, "resumed_length", 0)
    if length and request.return_logprob and request.logprob.output_token_logprobs_val is not None:
        _skip_logprobs(request, length)
    waits: bool = original(grammar_manager, request)
    if not waits:
        _replay_grammar(request)
    return waits


def _skip_logprobs(request: Any, length: int) -> None:
    """Those of the resumed tokens were sent by the engine that made them: hold their places."""
    for name in LOGPROB_FIELDS:
        getattr(request.logprob, name).extend([None] * length)
    request.send_output_token_logprobs_offset = length
    if request.logprob_start_len == len(request.origin_input_ids):  # the default: of output tokens only
        request.logprob_start_len += length


def grammars_ready(requests: Any, _grammar_manager: Any) -> None:
    """After GrammarManager.get_ready_grammar_requests: grammars that had to be compiled first."""
    for request in requests:
        _replay_grammar(request)


def _replay_grammar(request: Any) -> None:
    length = getattr(request, "resumed_length", 0)
    if not length or request.grammar is None or request.finished() or request.to_finish:
        return
    try:
        for token in request.output_ids[:length]:
            request.grammar.accept_token(token)
    except ValueError as error:
        request.set_finish_with_abort(f"the resumed tokens do not follow the grammar: {str(error).splitlines()[0]}")


def count_penalties(_result: Any, orchestrator: Any, vocab_size: int, batch: Any, penalizers: Any) -> None:
    """After BatchedPenalizerOrchestrator.__init__: a new batch's penalties start at zero, also for requests that already have
    output (resumed ones, and those that SGLang retracted): count it. SGLang passes the arguments by these names."""
    for row, request in enumerate(batch.reqs):
        if not request.output_ids:
            continue
        # With the overlap schedule a step sees the output of the step before the last one, and first of all the last prompt token.
        seen = [request.origin_input_ids[-1], *request.output_ids[:-1]] if batch.enable_overlap else list(request.output_ids)
        tokens = torch.tensor(seen, dtype=torch.int64).to(orchestrator.device)
        for penalizer in orchestrator.penalizers.values():
            if penalizer.is_prepared():
                _count_row(penalizer, row, tokens)


def _count_row(penalizer: Any, row: int, tokens: torch.Tensor) -> None:
    """Bring one row of one penalty to where it stood after `tokens`."""
    match type(penalizer).__name__:
        case "BatchedFrequencyPenalizer":
            per_token = penalizer.frequency_penalties[row].expand(len(tokens))
            penalizer.cumulated_frequency_penalties[row].scatter_add_(0, tokens, per_token)
        case "BatchedPresencePenalizer":
            penalizer.cumulated_presence_penalties[row, tokens] = penalizer.presence_penalties[row]
        case "BatchedRepetitionPenalizer":
            penalizer.cumulated_repetition_penalties[row, tokens] = penalizer.repetition_penalties[row]
        case "BatchedMinNewTokensPenalizer":
            penalizer.len_output_tokens[row] = len(tokens)


def hooks() -> None:
    """Hook the four functions above into SGLang's scheduler."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    grammar = "sglang.srt.constrained.grammar_manager.GrammarManager"
    orchestrator = "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator"
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler._create_generation_req", create_request, HookType.AROUND)
    HookRegistry.register(f"{grammar}.process_req_with_grammar", queue_request, HookType.AROUND)
    HookRegistry.register(f"{grammar}.get_ready_grammar_requests", grammars_ready, HookType.AFTER)
    HookRegistry.register(f"{orchestrator}.__init__", count_penalties, HookType.AFTER)
