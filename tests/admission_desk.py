"""Admission's machine on plain data, with a clock in the test's hand."""

from services.admission.config import AdmissionConfig, Terms
from services.admission.decide import MACHINE
from services.admission.state import State
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, Hardware, ModelCard, QueueReported, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, Sampling, StepAdmitted, StepClosed, StepRefused, StepSettled, SubmissionRead
from shared.core.machine import step

MS = 1_000_000
SECOND = 1_000 * MS
NOW = 1_700_000_000 * SECOND
KEY, OTHER_KEY = "sha256:" + "a" * 64, "sha256:" + "b" * 64


class Desk:
    """The machine with a clock in the test's hand."""

    def __init__(self, *, settings: dict[str, object] | None = None, **terms: object) -> None:
        tenants = {"acme": Terms(keys=[KEY], **terms)} if terms else {}  # type: ignore[arg-type]
        self.config = AdmissionConfig(tenants=tenants, **(settings or {}))  # type: ignore[arg-type]
        self.state = State()
        self.now = NOW
        self._count = 0

    def take(self, event: Message) -> list[Message]:
        return step(MACHINE, self.state, event, self.now, self.config)

    def submit(self, name: str = "", **fields: object) -> list[Message]:
        self._count += 1
        values = {"key": KEY, "model": "small", "prompt_tokens": 10, "context_tokens": 1_000, **fields}
        values.setdefault("sampling", Sampling(max_tokens=10))
        return self.take(SubmissionRead(step=StepId(name or f"s{self._count}"), **values))  # type: ignore[arg-type]

    def admitted(self, name: str = "", **fields: object) -> StepAdmitted:
        [message] = self.submit(name, **fields)
        assert isinstance(message, StepAdmitted)
        return message

    def refused(self, name: str = "", **fields: object) -> Problem:
        refused, output = self.submit(name, **fields)
        assert isinstance(refused, StepRefused)
        assert isinstance(output, Output)
        assert output.end is not None
        assert (output.end.status, output.end.problem, output.step) == (Status.REFUSED, refused.problem, refused.step)
        return refused.problem

    def settle(self, name: str, output_tokens: int = 0, prompt_tokens: int = 10) -> list[Message]:
        usage = Usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return self.take(StepSettled(step=StepId(name), status=Status.SUCCEEDED, usage=usage))

    def end(self, name: str, status: Status = Status.SUCCEEDED, **fields: object) -> list[Message]:
        values = {"cell": CellId("local"), "worker": WorkerId("w"), "attempt": 1, **fields}
        return self.take(AttemptEnded(step=StepId(name), status=status, **values))  # type: ignore[arg-type]

    def close(self, name: str, status: Status = Status.FAILED, attempt: int = 0) -> list[Message]:
        problem = Problem(reason=Reason.INTERNAL, message="closed")
        return self.take(StepClosed(step=StepId(name), status=status, problem=problem, attempt=attempt))

    def fleet(self, decode_tokens_per_s: float = 10.0, cell: str = "local", usd_per_hour: float = 0.0) -> None:
        card = ModelCard(name=ModelName("small"), tokenizer="t", vocab_size=10, context_tokens=1_000, block_tokens=16)
        capacity = Capacity(blocks=1, slots=1, decode_tokens_per_s=decode_tokens_per_s, prefill_tokens_per_s=10 * decode_tokens_per_s)
        self.take(
            WorkerRegistered(
                worker=WorkerId(f"w-{cell}"),
                cell=CellId(cell),
                pool="p",
                epoch=1,
                state=WorkerState.READY,
                card=card,
                capacity=capacity,
                hardware=Hardware(usd_per_hour=usd_per_hour),
            )
        )

    def queue(self, *, drain_ms: int = 0, depth: int = 0, cell: str = "local") -> None:
        model = ModelName("small")
        self.take(
            QueueReported(cell=CellId(cell), model=model, depth=depth, waiting_tokens=0, running=0, slots=1, workers=1, drain_ms=drain_ms)
        )
