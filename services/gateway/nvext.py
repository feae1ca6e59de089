"""What clients of NVIDIA Dynamo say beside OpenAI's parameters, in Legato's words. Pure.

Rule: what Dynamo documents is honoured, or is a hint that changes nothing here and says so below, or is refused by its name; what Dynamo
does not document is refused by its name. A hint gives no rights: a priority is one that the client could have asked for itself, and
admission grants it or not; a session only groups steps, apart for each API key.

Sources: github.com/ai-dynamo/dynamo, docs/components/frontend/nvext.md, docs/agents/agent-hints.md, docs/agents/session-ids.md,
docs/agents/trajectory-ids.md (its name before) and lib/llm/src/protocols/agents.rs (headers of coding agents); versions 1.0 to 1.7.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.core.workflows import Unfit

SESSION_CHARS_MAX = 256
UINT32_MAX = 2**32 - 1

Count = Annotated[int, Meta(ge=0, le=UINT32_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=SESSION_CHARS_MAX)]

# The first of these that a request has names its session: the parent's before its own, since a task is the whole tree of its agents.
SESSION_HEADERS = (
    "X-Dynamo-Parent-Session-ID",
    "X-Dynamo-Session-ID",
    "X-Dynamo-Parent-Trajectory-ID",
    "X-Dynamo-Trajectory-ID",
    "X-Claude-Code-Session-Id",  # of the root agent, whichever agent asks
    "X-Codex-Parent-Thread-Id",
    "Thread-Id",  # Codex
    "X-DeepSeek-Harness-Parent-Session-Id",
    "X-DeepSeek-Harness-Session-Id",
    "X-Parent-Session-Id",  # OpenCode
    "X-Session-Id",
)


class AgentHints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without effect here: `osl` (the scheduler counts with max_tokens), `strict_priority` (Legato has one order of priorities, and it is
    strict), `speculative_prefill` (the prefix of a conversation is found in the engine's cache), `latency_sensitivity` (Dynamo's old name
    for a priority within its router)."""

    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None  # as X-Legato-Priority
    strict_priority: Count | None = None
    osl: Count | None = None
    speculative_prefill: bool | None = None
    latency_sensitivity: float | None = None


class AgentContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The session in the body, as earlier versions had it; newer ones have headers."""

    session_type_id: Name | None = None  # without effect
    session_id: Name | None = None
    parent_session_id: Name | None = None
    session_final: bool | None = None  # without effect: it does not say how the task ended
    trajectory_id: Name | None = None
    parent_trajectory_id: Name | None = None
    trajectory_final: bool | None = None  # likewise

    @property
    def session(self) -> str:
        return self.parent_session_id or self.session_id or self.parent_trajectory_id or self.trajectory_id or ""


class NvExt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`nvext` of a request. `request_timestamp_ms` (for Dynamo's replay) is without effect. Those of NEUTRAL are refused."""

    agent_hints: AgentHints | None = None
    agent_context: AgentContext | None = None
    greed_sampling: bool | None = None  # true: as temperature 0, whatever else is given
    request_timestamp_ms: float | None = None
    use_raw_prompt: Any = None
    annotations: Any = None
    extra_fields: Any = None
    backend_instance_id: Any = None
    prefill_worker_id: Any = None
    decode_worker_id: Any = None
    dp_rank: Any = None
    prefill_dp_rank: Any = None
    token_data: Any = None
    max_thinking_tokens: Any = None
    cache_salt: Any = None
    cache_control: Any = None
    session_control: Any = None


# Fields that ask for something which Legato does not do, and the values, besides null, that do not ask for it.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "use_raw_prompt": (False,),
    "annotations": ([],),
    "extra_fields": ([],),
    "backend_instance_id": (),
    "prefill_worker_id": (),
    "decode_worker_id": (),
    "dp_rank": (),
    "prefill_dp_rank": (),
    "token_data": (),
    "max_thinking_tokens": (),
    "cache_salt": (),
    "cache_control": (),
    "session_control": (),
}


def session_of(nvext: NvExt | None, headers: Mapping[str, str]) -> str:
    """The session that a request belongs to, empty if to none. Headers go before the body, as in Dynamo. Raises Unfit."""
    for name in SESSION_HEADERS:
        session = headers.get(name, "").strip()
        if session:
            if len(session) > SESSION_CHARS_MAX or not session.isprintable():
                raise Unfit(f"{name} should have up to {SESSION_CHARS_MAX} printable characters", name)
            return session
    return nvext.agent_context.session if nvext is not None and nvext.agent_context is not None else ""
