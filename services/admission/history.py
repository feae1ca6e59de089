"""Submissions that refer to a stored conversation: the same with all of its messages, as if they had been sent so."""

import asyncio
import logging

import msgspec

from shared.contracts.outcomes import Problem
from shared.contracts.steps import ChatMessage, Submission
from shared.core.conversation import Walk
from shared.runtime.bus import BusError
from shared.runtime.conversations import Conversations

log = logging.getLogger(__name__)

TRIES = 3
AGAIN_S = 1.0  # NATS is away


class History:
    """`bytes_max`: of a submission with all of its messages, however it was sent."""

    def __init__(self, conversations: Conversations, bytes_max: int) -> None:
        self._conversations = conversations
        self._bytes_max = bytes_max

    def at_hand(self, submission: Submission, size: int) -> tuple[Submission, int] | Problem | None:
        """The whole submission and its bytes, if all of it is in memory. `size`: its bytes as it was sent."""
        walk = Walk(submission.history, self._bytes_max, size)
        found = self._conversations.at_hand(walk, submission.key)
        return None if found is None else _whole(submission, walk, found)

    async def read(self, submission: Submission, size: int) -> tuple[Submission, int] | Problem:
        """The same, and what is not in memory is fetched. Raises BusError when NATS stays away: the service then starts afresh, and no
        submission is lost."""
        for left in reversed(range(TRIES)):
            walk = Walk(submission.history, self._bytes_max, size)
            try:
                return _whole(submission, walk, await self._conversations.read(walk, submission.key))
            except BusError as error:
                if not left:
                    raise
                log.warning("conversation not read yet", extra={"error": str(error)})
                await asyncio.sleep(AGAIN_S)
        raise AssertionError("the last try returns or raises")


def _whole(submission: Submission, walk: Walk, found: list[ChatMessage] | Problem) -> tuple[Submission, int] | Problem:
    if isinstance(found, Problem):
        return found
    return msgspec.structs.replace(submission, messages=found, history=""), walk.size
