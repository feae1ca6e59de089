"""What happens to a submission before the machine sees it: parsed, checked against its model's card, tokenised.

All that takes time is here, none of it in the decision.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from services.admission.cards import Cards
from services.admission.config import AdmissionConfig
from services.admission.history import History
from services.admission.policies.tenant import tenant_of
from services.admission.prompts import Prompts
from services.admission.reading import check, parse, seeded, step_from, trace_from
from services.admission.refusal import plain
from services.admission.state import State
from services.admission.tokenising import INLINE_BYTES, Encoded, Tokenisers
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import MessageId, StepId, TenantId, WorkflowId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import AttemptEnded, Prompt, StepClosed, StepRefused, StepSettled, Submission, SubmissionRead
from shared.contracts.subjects import step_of
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core.catalogue import resolve
from shared.core.errors import LegatoError
from shared.core.inputs import fingerprint
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.drivers.inputs import Unreadable
from shared.runtime.conversations import Conversations
from shared.runtime.cursor import Record

log = logging.getLogger(__name__)

NUMBER_BYTES_MAX = 21  # of a block's hash in JSON; a token's id is shorter
ENVELOPE_BYTES = 2_048  # of a prompt, besides tokens and blocks
NAMELESS_CHARS_MAX = 512  # of a step id that is none, and is answered all the same; nats-server takes 4,096 bytes of subjects at once

NEWS = (AttemptEnded, StepClosed, StepRefused, StepSettled, WorkflowOpened, BudgetSet)  # what it reads besides submissions
_News = AttemptEnded | StepClosed | StepRefused | StepSettled | WorkflowOpened | BudgetSet
_NEWS: msgspec.json.Decoder[_News] = msgspec.json.Decoder(_News)
Aliases = dict[str, str]


class Intake:
    """Turns records of the stream STEPS into the machine's inputs, and leaves their prompts with `prompts`."""

    def __init__(
        self, config: AdmissionConfig, aliases: Aliases, cards: Cards, tokenisers: Tokenisers, conversations: Conversations
    ) -> None:
        self.prompts = Prompts(config.prepared_tokens_max)
        self._history = History(conversations, config.prompt_bytes_max)
        self._message_bytes_max = conversations.message_bytes_max
        self._config = config
        self._aliases = aliases
        self._cards = cards
        self._tokenisers = tokenisers
        self._slow = 0  # submissions that are being read, and take their time

    def prepare(self, record: Record) -> Message | Awaitable[Message]:
        """The input, at once for all that is short and whose tokenizer is in memory. Raises Unreadable for what has no step id that anybody
        could be answered under, or is no message of ours."""
        if not record.subject.startswith("legato.submit."):
            return self._owned(news(record.data, record.subject))
        step = step_from(record.subject)
        if step is None:
            raise _nameless(record)
        submission = parse(record.data, self._config.prompt_bytes_max)
        blank = SubmissionRead(id=MessageId(f"{record.stream}:{record.seq}"), step=step, trace=trace_from(record.headers))
        if isinstance(submission, Problem):
            return msgspec.structs.replace(blank, problem=submission)
        try:
            return self._read(_asked(_filled(blank, submission), submission), submission, len(record.data))
        except LegatoError:
            raise
        except Exception as error:
            return _broken(blank, error)

    def _owned(self, event: Message) -> Message:
        """What is said of a workflow's budget, with the tenant whose key it names; with none where that is nobody's."""
        if not isinstance(event, WorkflowOpened | BudgetSet):
            return event
        owner = tenant_of(event.key, self._config)
        return msgspec.structs.replace(event, tenant=TenantId("") if isinstance(owner, Problem) else owner[0])

    def _read(self, read: SubmissionRead, submission: Submission, size: int) -> Message | Awaitable[Message]:
        owner = tenant_of(submission.key, self._config)
        if isinstance(owner, Problem):  # before any work is done for it
            return msgspec.structs.replace(read, problem=owner)
        card = self._cards.get(resolve(self._aliases, submission.model))
        if card is None:
            return msgspec.structs.replace(read, problem=self._not_found(submission.model))
        read = msgspec.structs.replace(read, model=card.name, context_tokens=card.context_tokens)
        if submission.history:
            whole = self._history.at_hand(submission, size)
            if whole is None:
                self._slow += 1
                return self._read_slowly(read, submission, card, size)
            if isinstance(whole, Problem):
                return msgspec.structs.replace(read, problem=whole)
            submission, size = whole
            read = _asked(read, submission)
        problem = check(submission, card)
        if problem is not None:
            return msgspec.structs.replace(read, problem=problem)
        tokeniser = self._tokenisers.at_hand(card) if size <= INLINE_BYTES and self.prompts.has_room else None
        if tokeniser is None or self._slow:  # a prompt that took the room of one before it would wait for that one's decision
            self._slow += 1
            return self._read_slowly(read, submission, card, size)
        return self._tokenised(read, submission, card, tokeniser.encode(submission))

    async def _read_slowly(self, read: SubmissionRead, submission: Submission, card: ModelCard, size: int) -> Message:
        try:
            await self.prompts.room()
            if submission.history:
                whole = await self._history.read(submission, size)
                problem = whole if isinstance(whole, Problem) else check(whole[0], card)
                if isinstance(whole, Problem) or problem is not None:
                    return msgspec.structs.replace(read, problem=problem)
                submission, size = whole
                read = _asked(read, submission)
            return self._tokenised(read, submission, card, await self._tokenisers.encode(submission, card, size))
        except LegatoError:
            raise
        except Exception as error:
            return _broken(read, error)
        finally:
            self._slow -= 1

    def _tokenised(self, read: SubmissionRead, submission: Submission, card: ModelCard, encoded: Encoded | Problem) -> SubmissionRead:
        if isinstance(encoded, Problem):
            return msgspec.structs.replace(read, problem=encoded)
        prompt = _prompt(read, card, encoded)
        problem = oversize(prompt, self._message_bytes_max)
        if problem is not None:
            return msgspec.structs.replace(read, problem=problem)
        self.prompts.put(read.id, prompt)
        return msgspec.structs.replace(read, prompt_tokens=len(encoded.tokens), sampling=seeded(submission.sampling, read.step, card))

    def _not_found(self, model: str) -> Problem:
        known = ", ".join(self._cards.names[:20]) or "none"
        message = plain(f"there is no model {model[:100]}; served now: {known}")
        return Problem(reason=Reason.MODEL_NOT_FOUND, message=message, param="model")


def watched(decide: Callable[..., list[Message]], prompts: Prompts) -> Callable[..., list[Message]]:
    """`decide`, telling `prompts` what became of each submission; also when it fails."""

    def decide_and_tell(state: State, event: Message, now_ns: int, config: AdmissionConfig) -> list[Message]:
        try:
            outputs: list[Message] = decide(state, event, now_ns, config)
        except BaseException:
            prompts.forget(event)
            raise
        held = state.held.get(event.step)
        prompts.decided(event, outputs, held=held is not None and held.read is event)
        return outputs

    return decide_and_tell


def _broken(read: SubmissionRead, error: Exception) -> SubmissionRead:
    """A bug: its submission is answered like any other, and holds up nobody."""
    log.error("a submission could not be read", exc_info=error)
    problem = Problem(reason=Reason.INTERNAL, message=plain(f"the submission could not be read: {type(error).__name__}"))
    return msgspec.structs.replace(read, problem=problem)


def _filled(read: SubmissionRead, submission: Submission) -> SubmissionRead:
    return msgspec.structs.replace(
        read,
        workflow=WorkflowId(submission.workflow),
        key=submission.key,
        model=plain(submission.model),
        priority=submission.priority,
        timeout_ms=submission.timeout_ms,
        step_key=plain(submission.step_key),
    )


def _asked(read: SubmissionRead, submission: Submission) -> SubmissionRead:
    """With what is said of the question itself, all of which must be there."""
    chat = submission.messages is not None
    return msgspec.structs.replace(read, chat=chat, input=fingerprint(submission) if submission.step_key else "")


def _prompt(read: SubmissionRead, card: ModelCard, encoded: Encoded) -> Prompt:
    return Prompt(
        id=MessageId(f"prompt.{read.step}.{read.id}"),
        step=read.step,
        workflow=read.workflow,
        trace=read.trace,
        model=card.name,
        tokens=encoded.tokens,
        block_tokens=card.block_tokens,
        blocks=encoded.blocks,
    )


def oversize(prompt: Prompt, bytes_max: int) -> Problem | None:
    """Why the prompt cannot be stored, if so. Exact only where it comes near: to encode it takes time."""
    if NUMBER_BYTES_MAX * (len(prompt.tokens) + len(prompt.blocks)) + ENVELOPE_BYTES <= bytes_max:
        return None
    size = len(ENCODER.encode(prompt)) + ENVELOPE_BYTES
    if size <= bytes_max:
        return None
    message = f"the prompt has {len(prompt.tokens)} tokens, which take {size} bytes on the bus; at most {bytes_max} can be stored"
    return Problem(reason=Reason.TOO_LARGE, message=message)


def news(data: bytes, subject: str) -> Message:
    """What became of a step, or what a workflow may cost. An attempt's report without its output, which can be long and is not for the
    journal. Raises Unreadable, also for what is said about a workflow on another one's subject."""
    try:
        event = read(_NEWS, data)
    except NoMessage as error:
        raise Unreadable(str(error)) from error
    if isinstance(event, WorkflowOpened | BudgetSet) and KIND[type(event)].subject(event) != subject:
        raise Unreadable(f"it is about workflow {event.workflow[:100]!r}, its subject is {subject[:200]}")
    return msgspec.structs.replace(event, tokens=[], text="") if isinstance(event, AttemptEnded) else event


def _nameless(record: Record) -> Unreadable:
    message = "the subject must end with a step id of up to 128 letters, digits, _ and -"
    step = StepId(step_of(record.subject))
    if len(step) > NAMELESS_CHARS_MAX:
        return Unreadable(message)
    problem = Problem(reason=Reason.INVALID, message=message)
    output = Output(step=step, end=End(status=Status.REFUSED, finish_reason=FinishReason.ERROR, problem=problem))
    return Unreadable(message, outputs=[output])
