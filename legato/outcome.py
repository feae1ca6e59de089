"""How a step ends, as its caller sees it: a result, or an error that carries the problem."""

import msgspec

from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output, TokenLogprob
from shared.contracts.steps import StepRecord
from shared.core.errors import LegatoError
from shared.core.workflows import output_of


class Result(msgspec.Struct, kw_only=True):
    """What a step has given: all of it when it has ended, what has arrived so far before."""

    id: StepId
    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []  # one per token, when asked for
    usage: Usage = Usage()
    status: Status = Status.SUCCEEDED
    finish_reason: FinishReason = FinishReason.STOP


class StepError(LegatoError):
    """A step that gave no full result. `problem` says why; `result` holds what had arrived before."""

    def __init__(self, problem: Problem, result: Result) -> None:
        super().__init__(f"{problem.message} ({problem.reason})")
        self.problem = problem
        self.result = result


class Refused(StepError):
    """The step was not accepted: the request is wrong, or over a limit. See `problem.param` and `problem.retry_after_ms`."""


class Failed(StepError):
    """The step was accepted and could not be completed: failed, expired or shed (`result.status`)."""


class NotEnded(LegatoError, TimeoutError):
    """The step has not ended in time. It goes on: `client.result(id)` joins it again, `client.cancel(id)` stops it."""


class Gathering:
    """Puts a step's outputs together."""

    def __init__(self, step: StepId) -> None:
        self._result = Result(id=step)
        self._texts: list[str] = []
        self.end: End | None = None

    @classmethod
    def of_record(cls, record: StepRecord) -> "Gathering | None":
        """From what Postgres has, once it has the end; logprobs are not kept there."""
        output = output_of(record)
        if output is None:
            return None
        gathering = cls(record.step)
        gathering.add(output)
        return gathering

    def add(self, output: Output) -> None:
        """Take the next output; they must come in order, as OutputReader yields them."""
        self._texts.append(output.text)
        self._result.tokens.extend(output.tokens)
        self._result.logprobs.extend(output.logprobs)
        if output.end is not None:
            self.end = output.end
            self._result.usage = output.end.usage
            self._result.status = output.end.status
            self._result.finish_reason = output.end.finish_reason

    @property
    def result(self) -> Result:
        """What has arrived."""
        self._texts = ["".join(self._texts)]
        self._result.text = self._texts[0]
        return self._result

    def raise_for_status(self) -> None:
        """Raise Refused or Failed unless the step succeeded, was cancelled, or still runs."""
        if self.end is None or self.end.status in (Status.SUCCEEDED, Status.CANCELLED):
            return
        problem = self.end.problem or Problem(reason=Reason.INTERNAL, message=f"the step ended as {self.end.status}, without a reason")
        kind = Refused if self.end.status is Status.REFUSED else Failed
        raise kind(problem, self.result)
