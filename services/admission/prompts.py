"""Prompts between tokenising and decision.

The machine sees only their lengths. Their tokens wait here, and go out right before the admission.
"""

import asyncio

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId, StepId
from shared.contracts.steps import Prompt, StepAdmitted, StepRefused, SubmissionRead
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
        self._reads: dict[StepId, MessageId] = {}  # the submission by which a step is admitted: there may be copies of it
        self._tokens = 0
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether another prompt may be prepared now."""
        return self._tokens < self._tokens_max and not self._gate.locked()

    async def room(self) -> None:
        """Wait until another prompt may be prepared. Raises PromptsError."""
        if self.has_room:
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
        read = self._reads.pop(message.step, None) if isinstance(message, StepAdmitted) else None
        prompt = self._drop(read)
        if prompt is None or read is None:
            return []
        return [msgspec.structs.replace(prompt, tenant=message.tenant, cause=read, time_ns=message.time_ns)]

    def decided(self, event: Message, outputs: list[Message], *, held: bool) -> None:
        """Forget the prompts of copies and of what was refused. `held`: the event is a submission that is no copy: its prompt is kept until
        it is answered, now or later."""
        if held:
            self._reads[event.step] = event.id
        else:
            self.forget(event)
        for output in outputs:
            if isinstance(output, StepRefused):
                self._drop(self._reads.pop(output.step, None))

    def forget(self, event: Message) -> None:
        """Of a submission that nothing comes of."""
        if isinstance(event, SubmissionRead):
            self._drop(event.id)

    def _drop(self, read: MessageId | None) -> Prompt | None:
        prompt = self._waiting.pop(read, None) if read is not None else None
        if prompt is not None:
            self._tokens -= len(prompt.tokens)
            self._room.set()
        return prompt
