"""What admission and router must hold for whatever comes in."""

import asyncio
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.config import AdmissionConfig, Terms
from services.admission.decide import MACHINE
from services.admission.policies.tenant import tenant_of
from services.admission.reading import check, parse, seeded, step_from, trace_from
from services.admission.state import GRACE_NS, SWEEP_NS, State
from services.admission.tokenising import Encoded, Tokenisers
from services.router.config import RouterConfig
from services.router.decide import MACHINE as ROUTER
from services.router.state import State as RouterState
from services.worker.engines import byte_tokenizer
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import Capacity, ModelCard, QueueReported, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.output import Output
from shared.contracts.steps import (
    AttemptEnded,
    Job,
    Sampling,
    StepAdmitted,
    StepClosed,
    StepRefused,
    StepRouted,
    StepSettled,
    Submission,
    SubmissionRead,
)
from shared.core import limits
from shared.core.machine import ENCODER, step

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
CARD = ModelCard(
    name=ModelName("small"),
    tokenizer="t",
    chat_template=byte_tokenizer.CHAT_TEMPLATE,
    vocab_size=byte_tokenizer.VOCAB_SIZE,
    context_tokens=1_000,
    block_tokens=16,
    unsupported=["min_p"],
)

# --- malformed submissions -------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # with lone surrogates: JSON can write them
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [*Submission.__struct_fields__, *Sampling.__struct_fields__, "x"]
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("small") | ANY_JSON,
        "prompt": TEXT | st.lists(st.integers(-5, 300), max_size=8) | ANY_JSON,
        "messages": st.lists(st.fixed_dictionaries({"role": st.text(max_size=40)}, optional={"content": TEXT | ANY_JSON})),
        "sampling": st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, max_size=3) | ANY_JSON,
        "workflow": st.text(max_size=10),
        "timeout_ms": st.integers(-5, 10**12) | ANY_JSON,
        "key": ANY_JSON,
        "x": ANY_JSON,
    },
)
BODIES = st.binary(max_size=200) | ANY_JSON.map(lambda v: json.dumps(v).encode()) | NEARLY.map(lambda v: json.dumps(v).encode())


async def _fetch(_: str) -> bytes:
    return byte_tokenizer.build()


def _read(tokenisers: Tokenisers, body: bytes) -> Problem | Encoded:
    submission = parse(body, 1_000)
    if isinstance(submission, Problem):
        return submission
    ENCODER.encode(seeded(submission.sampling, StepId("s"), CARD))  # must fit into the journal
    return check(submission, CARD) or asyncio.run(tokenisers.encode(submission, CARD, 0))


@settings(deadline=None, max_examples=300)
@given(BODIES)
def test_whatever_is_published_is_read_or_refused_by_name_and_never_raises(body: bytes) -> None:
    tokenisers = Tokenisers(_fetch, 1, 1)
    try:
        outcome = _read(tokenisers, body)
    finally:
        tokenisers.close()
    if isinstance(outcome, Problem):
        assert outcome.message
        assert outcome.message.isprintable()
        assert outcome.reason is not Reason.INTERNAL
        ENCODER.encode(outcome)
    else:
        assert all(0 <= token < CARD.vocab_size for token in outcome.tokens)


@given(st.text(max_size=150), st.dictionaries(st.just("traceparent"), st.text(max_size=60)))
def test_whatever_the_subject_and_the_trace_are_nothing_raises(token: str, headers: dict[str, str]) -> None:
    step_from(f"legato.submit.{token}")
    trace_from(headers)


# --- admission -------------------------------------------------------------------------------------------------------------------

STEPS = st.sampled_from([StepId(f"s{index}") for index in range(12)])
KEYS = ["sha256:" + digit * 64 for digit in "abc"]
CONFIG = AdmissionConfig(
    tenants={
        "a": Terms(keys=[KEYS[0]], requests_per_minute=5, tokens_per_minute=300, concurrent_max=3),
        "b": Terms(keys=[KEYS[1]], tokens_per_minute=100, max_output_tokens=40),
    },
    in_flight_max=6,
    queue_depth_max=5,
)
CELLS = st.sampled_from([CellId("x"), CellId("y")])
WORKERS = st.sampled_from([WorkerId(f"w{index}") for index in range(4)])


def registrations() -> st.SearchStrategy[Message]:
    return st.builds(
        WorkerRegistered,
        worker=WORKERS,
        cell=CELLS,
        pool=st.just("p"),
        epoch=st.integers(1, 3),
        state=st.sampled_from(WorkerState),
        card=st.sampled_from([CARD, msgspec.structs.replace(CARD, name=ModelName("large"))]),
        capacity=st.builds(Capacity, blocks=st.just(1), slots=st.just(1), decode_tokens_per_s=st.sampled_from([0.0, 10.0])),
    )


def fleet_events() -> st.SearchStrategy[Message]:
    return (
        registrations()
        | st.builds(WorkerGone, worker=WORKERS, cell=CELLS, epoch=st.integers(1, 3))
        | st.builds(
            QueueReported,
            cell=CELLS,
            model=st.sampled_from([ModelName("small"), ModelName("large"), ModelName("other")]),
            depth=st.integers(0, 8),
            waiting_tokens=st.just(0),
            running=st.integers(0, 4),
            slots=st.integers(0, 4),
            workers=st.integers(0, 2),
            drain_ms=st.integers(0, 700_000),
        )
        | st.just(Tick())
    )


def submissions() -> st.SearchStrategy[Message]:
    return st.builds(
        SubmissionRead,
        step=STEPS,
        key=st.sampled_from(KEYS),
        model=st.just("small"),
        prompt_tokens=st.integers(1, 1_010),
        context_tokens=st.just(1_000),
        sampling=st.builds(Sampling, max_tokens=st.none() | st.integers(1, 60)),
        timeout_ms=st.none() | st.integers(1, 4_000_000),
        problem=st.none() | st.just(Problem(reason=Reason.INVALID, message="no")),
    )


def settlements() -> st.SearchStrategy[Message]:
    usage = st.builds(Usage, prompt_tokens=st.integers(0, 2_000), output_tokens=st.integers(0, 100))
    return st.builds(StepSettled, step=STEPS, status=st.sampled_from(Status), usage=usage)


def endings() -> st.SearchStrategy[Message]:
    return st.builds(
        AttemptEnded,
        step=STEPS,
        cell=CELLS,
        worker=WORKERS,
        attempt=st.just(1),
        status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]),
        retryable=st.booleans(),
    )


def closings() -> st.SearchStrategy[Message]:
    return st.builds(StepClosed, step=STEPS, status=st.sampled_from(Status), problem=st.just(Problem(reason=Reason.INTERNAL, message="no")))


def timed(events: st.SearchStrategy[Message]) -> st.SearchStrategy[list[tuple[Message, int]]]:
    return st.lists(st.tuples(events, st.integers(-2 * SECOND, 40 * SECOND)), max_size=60)


def round_trip(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def check_admission(state: State, now: int) -> None:
    assert len(state.in_flight) <= CONFIG.in_flight_max
    for name, use in state.tenants.items():
        assert use.running == sum(entry.tenant == name and not entry.ended for entry in state.in_flight.values())
        assert 0 <= limits.level(use.requests_full_ns, now) <= 1
        assert 0 <= limits.level(use.tokens_full_ns, now) <= 1
        terms = CONFIG.tenants[name]
        assert not terms.concurrent_max or use.running <= terms.concurrent_max


def check_answer(state: State, event: Message, outputs: list[Message], known: bool, held: list[StepId]) -> None:
    """`held`: before the event."""
    answered = [output.step for output in outputs if isinstance(output, StepAdmitted | StepRefused)]
    assert [output.step for output in outputs if isinstance(output, StepRefused)] == [o.step for o in outputs if isinstance(o, Output)]
    assert len(set(answered)) == len(answered)
    if isinstance(event, SubmissionRead):
        assert answered == ([] if known or event.step in state.held else [event.step])
    else:
        assert set(answered) <= set(held)
    assert set(state.held) <= {*held, event.step}
    assert not state.held.keys() & {*state.in_flight, *state.settled, *state.refused}


@settings(deadline=None)
@given(timed(submissions() | settlements() | endings() | closings() | fleet_events()))
def test_admission_keeps_its_counts_and_decides_the_same_after_a_snapshot(events: list[tuple[Message, int]]) -> None:
    state, now = State(), NOW
    for event, later in events:
        now += later
        restored = round_trip(state)
        assert restored == state
        known = any(event.step in steps for steps in (state.held, state.in_flight, state.settled, state.refused))
        held = list(state.held)
        outputs = step(MACHINE, state, event, now, CONFIG)
        assert step(MACHINE, restored, round_trip(event), now, CONFIG) == outputs
        assert restored == state
        check_answer(state, event, outputs, known, held)
        check_admission(state, now)


@settings(deadline=None)
@given(timed(submissions() | settlements() | endings() | closings()), st.booleans())
def test_when_everything_is_settled_or_past_its_time_nothing_is_left_in_use(events: list[tuple[Message, int]], settle: bool) -> None:
    state, now = State(), NOW
    for event, later in events:
        now += later
        step(MACHINE, state, event, now, CONFIG)
    for name in list(state.in_flight) if settle else []:
        step(MACHINE, state, StepSettled(step=name, status=Status.SUCCEEDED), now, CONFIG)
    now += SECOND * 3_600 + GRACE_NS + 2 * SWEEP_NS + limits.PERIOD_NS
    step(MACHINE, state, Tick(), now, CONFIG)
    assert state.in_flight == {}
    assert state.held == {}
    assert state.tenants == {}


@given(st.text(max_size=80))
def test_no_key_but_a_tenants_own_names_it(key: str) -> None:
    assert isinstance(tenant_of(key, CONFIG), Problem)


# --- router ----------------------------------------------------------------------------------------------------------------------

ROUTER_CONFIG = RouterConfig(aliases={"alias": "small"}, waiting_max=3)


def admissions() -> st.SearchStrategy[Message]:
    models = st.sampled_from(["small", "large", "alias", "other"]).map(ModelName)
    return st.builds(StepAdmitted, step=STEPS, job=st.builds(Job, model=models, prompt_tokens=st.just(1), max_tokens=st.just(1)))


@settings(deadline=None)
@given(timed(admissions() | endings() | fleet_events()))
def test_the_router_answers_every_step_once_and_decides_the_same_after_a_snapshot(events: list[tuple[Message, int]]) -> None:
    state, now, asked, answered = RouterState(), NOW, 0, 0
    for event, later in [*events, (Tick(), 3_600 * SECOND)]:
        now += later
        restored = round_trip(state)
        assert restored == state
        asked += isinstance(event, StepAdmitted) and event.step not in state.waiting
        outputs = step(ROUTER, state, event, now, ROUTER_CONFIG)
        assert step(ROUTER, restored, round_trip(event), now, ROUTER_CONFIG) == outputs
        assert restored == state
        answered += sum(isinstance(output, StepRouted | StepClosed) for output in outputs)
        assert sum(isinstance(output, StepClosed) for output in outputs) == sum(isinstance(output, Output) for output in outputs)
        for output in outputs:
            assert not isinstance(output, StepRouted) or output.cell in state.fleet.models[output.job.model].cells
        assert len(state.waiting) <= ROUTER_CONFIG.waiting_max
    assert answered == asked
    assert state.waiting == {}
