"""Prompts between tokenising and decision.

The machine sees only their lengths. Their tokens wait here, and go out right before the admission.
"""

import asyncio

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId
from shared.contracts.steps import Prompt, StepAdmitted, SubmissionRead
from shared.core.errors import LegatoError

ROOM_TIMEOUT_S = 120.0


class PromptsError(LegatoError):
    """No prompt was decided on for too long."""


class Prompts:
    """Bounded by tokens. Those who bring prompts pass the gate one after the other, in the order of the stream: whoever waits there
    waits only for prompts before its own, so the wait ends."""

    def __init__(self, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._waiting: dict[MessageId, Prompt] = {}
        self._tokens = 0
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        """Wait until another prompt may be prepared. Raises PromptsError."""
        if self._tokens < self._tokens_max and not self._gate.locked():
            return
        async with self._gate:
            try:
                async with asyncio.timeout(ROOM_TIMEOUT_S):
                    while self._tokens >= self._tokens_max:
                        self._room.clear()
                        await self._room.wait()
            except TimeoutError as error:
                raise PromptsError(f"{len(self)} prompts have waited {ROOM_TIMEOUT_S:.0f} s for their decision") from error

    def put(self, read: MessageId, prompt: Prompt) -> None:
        """Keep the prompt of the SubmissionRead with that id."""
        self._drop(read)
        self._waiting[read] = prompt
        self._tokens += len(prompt.tokens)

    def attach(self, message: Message) -> list[Message]:
        """What is published before a decided message."""
        prompt = self._drop(message.cause) if isinstance(message, StepAdmitted) else None
        if prompt is None:
            return []
        return [msgspec.structs.replace(prompt, tenant=message.tenant, cause=message.cause, time_ns=message.time_ns)]

    def decided(self, event: Message, outputs: list[Message]) -> None:
        """Forget the prompt of a submission that was not admitted."""
        if isinstance(event, SubmissionRead) and not any(isinstance(output, StepAdmitted) for output in outputs):
            self._drop(event.id)

    def _drop(self, read: MessageId) -> Prompt | None:
        prompt = self._waiting.pop(read, None)
        if prompt is not None:
            self._tokens -= len(prompt.tokens)
            self._room.set()
        return prompt
