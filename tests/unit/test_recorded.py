"""What was asked of a fleet: from journals to a file, and from the file to programs that ask it again."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from legato.commands.record import write
from legato.simulate.recording import Prompts, Recording, Submissions, recording
from services.kv_registry.paths import Paths, learn, shortened
from services.kv_registry.state import PromptSeen
from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.kv import BlocksStored, KvChanged
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, Job, Sampling, StepAdmitted, StepRefused, StepSettled, SubmissionRead
from shared.core.blocks import block_hashes
from shared.core.errors import LegatoError
from shared.sim.programs import Call, Chain, Program
from shared.sim.workloads import workload
from shared.sim.workloads.recorded import Log

WIDTH = 16
S = 1_000_000_000
DAY_NS = 1_760_000_000 * S

_texts = itertools.count(1_000, 1_000)


def text(tokens: int) -> list[int]:
    """So many tokens that are nowhere else."""
    start = next(_texts)
    return list(range(start, start + tokens))


class Day:
    """Writes what the journals of a fleet would have: admission's entries, and the registry's inputs."""

    def __init__(self) -> None:
        self._admission: list[tuple[int, Message, list[Message]]] = []
        self._registry: list[tuple[int, Callable[[], Message]]] = []
        self._paths = Paths()

    def ask(self, step: str, prompt: Sequence[int], answer: Sequence[int], at_s: float, took_s: float = 1.0, **about: Any) -> None:
        """A step that succeeds. `about`: workflow, step_key, tenant, status, …"""
        at_ns, end_ns = self._read(step, prompt, at_s, about), DAY_NS + round((at_s + took_s) * S)
        tenant, workflow = TenantId(about.get("tenant", "acme")), WorkflowId(about.get("workflow", ""))
        job = Job(model=ModelName("m"), prompt_tokens=len(prompt), max_tokens=about.get("max_tokens", 100))
        admitted = StepAdmitted(step=StepId(step), workflow=workflow, tenant=tenant, job=job)
        self._admission[-1][2].append(admitted)
        self._registry.append((at_ns + 1, lambda: self._seen(admitted, prompt)))
        self._registry.append((end_ns, lambda: _stored([*prompt, *answer[:-1]])))
        usage = Usage(prompt_tokens=len(prompt), output_tokens=len(answer))
        status = about.get("status", Status.SUCCEEDED)
        ended = AttemptEnded(step=StepId(step), cell=CellId("c"), worker=WorkerId("w"), attempt=1, status=status, usage=usage)
        self._admission.append((end_ns, ended, []))
        self._admission.append((end_ns + S, StepSettled(step=StepId(step), status=status, usage=usage), []))

    def refuse(self, step: str, prompt: Sequence[int], reason: Reason, at_s: float, **about: Any) -> None:
        """A step that may not enter."""
        self._read(step, prompt, at_s, about)
        problem = Problem(reason=reason, message="no")
        self._admission[-1][2].append(StepRefused(step=StepId(step), tenant=TenantId(about.get("tenant", "acme")), problem=problem))

    def copy(self, step: str, prompt: Sequence[int], at_s: float) -> None:
        """Somebody submits it again."""
        self._read(step, prompt, at_s, {})

    def recording(self, since_s: float = 0.0, lost_until_s: float = 0.0) -> Recording:
        """From a part of the time on; the registry's journal may have lost its first entries."""
        submissions = Submissions(DAY_NS + round(since_s * S), DAY_NS + 1_000_000 * S)
        for now_ns, event, decided in sorted(self._admission, key=lambda entry: entry[0]):
            submissions.take(event, decided, now_ns)
        prompts = Prompts(submissions.steps)
        for now_ns, make in sorted(self._registry, key=lambda entry: entry[0]):
            event = make()
            if now_ns >= DAY_NS + round(lost_until_s * S):
                prompts.take(event)
        return recording(submissions.steps, prompts)

    def _read(self, step: str, prompt: Sequence[int], at_s: float, about: dict[str, Any]) -> int:
        read = SubmissionRead(
            step=StepId(step),
            workflow=WorkflowId(about.get("workflow", "")),
            key="sha256:secret",
            model="m",
            prompt_tokens=len(prompt),
            sampling=Sampling(max_tokens=about.get("max_tokens", 100)),
            step_key=about.get("step_key", ""),
        )
        self._admission.append((DAY_NS + round(at_s * S), read, []))
        return self._admission[-1][0]

    def _seen(self, admitted: StepAdmitted, prompt: Sequence[int]) -> Message:
        new = shortened(self._paths, block_hashes(prompt, WIDTH))
        learn(self._paths, new)
        about = {"step": admitted.step, "workflow": admitted.workflow, "tenant": admitted.tenant}
        return PromptSeen(**about, model=ModelName("m"), blocks=new.blocks, after=new.after, block_tokens=WIDTH)  # type: ignore[arg-type]


def _stored(tokens: Sequence[int]) -> Message:
    stored = BlocksStored(hashes=block_hashes(tokens, WIDTH))
    return KvChanged(worker=WorkerId("w"), cell=CellId("c"), epoch=1, seq=1, events=[stored])


@pytest.fixture
def asked_again(tmp_path: Path) -> Callable[..., list[Program]]:
    def again(found: Recording, seconds: float = 1e6, **settings: Any) -> list[Program]:
        write(tmp_path / "day.jsonl", found.rows)
        return list(workload("recorded", {"path": "day.jsonl"} | settings, seconds, 1, tmp_path))

    return again


Again = Callable[..., list[Program]]


def whole(call: Call) -> list[int]:
    """Blocks that an engine has once the call is answered: the KV of the last token is never computed."""
    return Chain((*call.prompt, call.output), WIDTH).first((call.prompt_tokens + call.output.tokens - 1) // WIDTH)


def blocks(call: Call) -> list[int]:
    return Chain(call.prompt, WIDTH).first(call.prompt_tokens // WIDTH)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_a_conversation_finds_its_prompts_and_its_answers_again(asked_again: Again) -> None:
    day, said, asked = Day(), text(70), []
    for turn in range(5):
        answer = text(45 + turn)
        day.ask(f"turn-{turn}", said, answer, at_s=10.0 * turn, took_s=2.0)
        asked.append((said, answer))
        said = [*said, *answer, *text(23)]
    [program] = asked_again(day.recording())
    assert [call.after for call in program.calls] == [(), ("call-1",), ("call-2",), ("call-3",), ("call-4",)]
    assert [call.wait_s for call in program.calls] == pytest.approx([0, 8, 8, 8, 8])
    for number, call in enumerate(program.calls):
        assert (call.prompt_tokens, call.output.tokens) == (len(asked[number][0]), len(asked[number][1]))
        for earlier in range(number):
            prompt, answer = asked[earlier]
            real = shared(block_hashes([*prompt, *answer[:-1]], WIDTH), block_hashes(asked[number][0], WIDTH))
            assert shared(whole(program.calls[earlier]), blocks(call)) == real == (len(prompt) + len(answer) - 1) // WIDTH


def test_prompts_share_what_they_shared_and_no_more(asked_again: Again) -> None:
    day, system, question = Day(), text(64), text(50)
    prompts = {"a": [*system, *question], "b": [*system, *text(50)], "c": text(100), "d": [*system, *question, *text(40)], "e": text(7)}
    for number, (name, prompt) in enumerate(prompts.items()):
        day.ask(name, prompt, text(20), at_s=number, took_s=0.5)
    programs = asked_again(day.recording())
    assert [len(program.calls) for program in programs] == [1] * 5, "nobody has gone on with an answer"
    for (one, tokens), (other, others) in itertools.combinations(zip(programs, prompts.values(), strict=True), 2):
        real = shared(block_hashes(tokens, WIDTH), block_hashes(others, WIDTH))
        assert shared(whole(one.calls[0]), blocks(other.calls[0])) == real


def test_who_asks_another_question_behind_a_short_prompt_does_not_quote_its_answer(asked_again: Again) -> None:
    """Both end with the same full block; the answer of the first was stored, and the second one's blocks were not."""
    day, system = Day(), text(WIDTH * 4)
    day.ask("a", [*system, 1, 2, 3], text(60), at_s=0)
    day.ask("b", [*system, 4, 5, 6, *text(60)], text(10), at_s=5)
    first, second = asked_again(day.recording())
    assert shared(whole(first.calls[0]), blocks(second.calls[0])) == 4


def test_of_two_whose_prompts_end_alike_the_answer_is_his_who_said_so_much(asked_again: Again) -> None:
    day, system, said = Day(), text(WIDTH * 4), text(60)
    asked = {"short": ([*system, 1, 2, 3], text(20)), "long": ([*system, 4, 5, 6, 7, 8], said), "brief": ([*system, 9], text(11))}
    asked["next"] = ([*asked["long"][0], *said, *text(30)], text(10))
    for number, (name, (prompt, answer)) in enumerate(asked.items()):
        day.ask(name, prompt, answer, at_s=5.0 * number)
    short, long, brief = asked_again(day.recording())
    assert [len(program.calls) for program in (short, long, brief)] == [1, 2, 1]
    assert shared(whole(long.calls[0]), blocks(long.calls[1])) == (69 + 60 - 1) // WIDTH
    assert shared(whole(short.calls[0]), blocks(long.calls[1])) == 4


def test_nobody_goes_on_with_the_answer_of_another_tenant(asked_again: Again) -> None:
    day, prompt, answer = Day(), text(40), text(60)
    day.ask("a", prompt, answer, at_s=0)
    day.ask("b", [*prompt, *answer, *text(9)], text(10), at_s=5, tenant="other")
    first, second = asked_again(day.recording())
    assert (first.tenant, second.tenant) == ("acme", "other")


def test_who_asks_at_the_moment_of_an_end_has_read_it(asked_again: Again) -> None:
    """The journal has the end a little later than its reader."""
    day = Day()
    for number, at_s in enumerate((0.0, 0.996, 1.9, 1.98)):
        day.ask(f"step-{number}", text(40), text(10), at_s=at_s, workflow="w", step_key=f"{number}")
    [program] = asked_again(day.recording())
    assert [(call.after, call.wait_s) for call in program.calls] == [((), 0), (("call-1",), 0), (("call-1",), 0.9), (("call-1",), 0.98)]


def test_steps_of_a_workflow_follow_those_that_had_ended(asked_again: Again) -> None:
    day = Day()
    day.ask("plan", text(40), text(10), at_s=1, took_s=2, workflow="w", step_key="plan")
    for number in range(3):
        day.ask(f"part-{number}", text(40), text(10), at_s=4, took_s=1 + number, workflow="w", step_key=f"part {number}")
    day.ask("alone", text(40), text(10), at_s=6)
    day.ask("late", text(40), text(10), at_s=6.5, took_s=9, workflow="w", step_key="late")
    day.ask("end", text(40), text(10), at_s=20, workflow="w", step_key="end")
    workflow, alone = asked_again(day.recording())
    assert [(call.after, call.wait_s) for call in workflow.calls] == [
        ((), 0),
        (("call-1",), 1),
        (("call-1",), 1),
        (("call-1",), 1),
        (("call-2", "call-3"), 0.5),
        (("call-4", "call-5"), 4.5),
    ]
    assert (len(alone.calls), alone.begins_s, alone.tenant) == (1, 5, "acme")


def test_what_was_refused_for_want_of_room_is_asked_again_and_what_nobody_could_serve_is_not(asked_again: Again) -> None:
    day = Day()
    for number, length in enumerate((10, 30, 90)):
        day.ask(f"ok-{number}", text(40), text(length), at_s=number)
    day.refuse("full", text(50), Reason.QUEUE_FULL, at_s=5)
    day.refuse("short", text(50), Reason.RATE_LIMITED, at_s=6, max_tokens=20)
    day.refuse("stranger", text(50), Reason.UNAUTHENTICATED, at_s=7)
    day.refuse("unread", [], Reason.NO_CAPACITY, at_s=8)
    day.copy("ok-0", text(40), at_s=9)
    found = day.recording()
    programs = asked_again(found)
    assert [program.calls[0].output.tokens for program in programs] == [10, 30, 90, 30, 20]
    assert [row.guessed for row in found.rows] == [False, False, False, True, True]
    assert [row.reason for row in found.rows[3:]] == ["queue_full", "rate_limit_exceeded"]
    said = "; ".join(found.notes)
    assert "2 steps left out, which no other fleet would have served either: invalid_api_key 1, no_capacity 1" in said
    assert "2 have no whole answer" in said
    assert "2 have no prompt in the registry's journal, 2 of them because they were refused" in said
    assert "secret" not in str(found.rows)


def test_a_step_that_was_cut_off_is_at_least_as_long_as_it_was() -> None:
    day = Day()
    day.ask("ok", text(40), text(30), at_s=0)
    day.ask("left", text(40), text(5), at_s=1, status=Status.CANCELLED)
    day.ask("late", text(40), text(44), at_s=2, status=Status.EXPIRED)
    assert [(row.output_tokens, row.guessed) for row in day.recording().rows] == [(30, False), (5, False), (44, True)]


def test_tries_of_one_step_are_one(asked_again: Again) -> None:
    day, prompt = Day(), text(40)
    day.refuse("try-1", prompt, Reason.QUEUE_FULL, at_s=0, workflow="w", step_key="plan")
    day.ask("try-2", prompt, text(25), at_s=3, workflow="w", step_key="plan")
    day.ask("next", text(40), text(10), at_s=6, workflow="w", step_key="next")
    found = day.recording()
    [program] = asked_again(found)
    assert [(row.step, row.tries, row.output_tokens, row.guessed) for row in found.rows[:1]] == [("try-2", 2, 25, False)]
    assert (program.begins_s, program.calls[1].after, program.calls[1].wait_s) == (0, ("call-1",), 2)
    assert "1 were tries of a workflow's step that was tried again later" in "; ".join(found.notes)


def test_prompts_that_began_before_the_journal_share_what_they_began_with(asked_again: Again) -> None:
    day, said = Day(), text(160)
    day.ask("before", said, text(20), at_s=0)
    branches = {"one": [*said, *text(60)], "two": [*said, *text(60)]}
    for number, (name, prompt) in enumerate(branches.items(), 10):
        day.ask(name, prompt, text(20), at_s=number, took_s=0.1)
    day.ask("three", [*branches["one"], *text(60)], text(20), at_s=20)
    found = day.recording(since_s=5, lost_until_s=5)
    one, two, three = (program.calls[0] for program in asked_again(found))
    assert (shared(blocks(one), blocks(two)), shared(blocks(one), blocks(three))) == (10, 220 // WIDTH)
    assert "2 go on from prompts that are no longer in the journal" in "; ".join(found.notes)


def test_a_growing_prompt_is_written_once() -> None:
    day, said = Day(), text(64)
    for turn in range(20):
        day.ask(f"turn-{turn}", said, text(20), at_s=turn, took_s=0.5)
        said = [*said, *text(64)]
    assert [len(row.blocks) for row in day.recording().rows] == [4] * 20


def test_nothing_that_can_be_asked_again_is_an_error_that_says_why() -> None:
    day = Day()
    day.refuse("stranger", text(50), Reason.UNAUTHENTICATED, at_s=7)
    with pytest.raises(LegatoError, match=r"no step of that time that can be asked again.*invalid_api_key 1"):
        day.recording()


def _simple() -> Recording:
    day, system = Day(), text(64)
    for number in range(3):
        day.ask(f"step-{number}", [*system, *text(40)], text(20), at_s=10.0 * number)
    return day.recording()


def test_it_is_played_faster_again_and_for_another_model(asked_again: Again) -> None:
    programs = asked_again(_simple(), 29, rate=2, repeat=True, model="other")
    assert [program.begins_s for program in programs[:4]] == pytest.approx([0, 5, 10, 13.333], abs=0.01)
    assert {call.model for program in programs for call in program.calls} == {"other"}
    assert shared(blocks(programs[0].calls[0]), blocks(programs[1].calls[0])) == 4
    assert shared(blocks(programs[0].calls[0]), blocks(programs[3].calls[0])) == 0
    assert len({program.id for program in programs}) == len(programs)


def test_tenants_may_have_objectives(asked_again: Again) -> None:
    [program, *_] = asked_again(_simple(), tenants=[{"name": "acme", "objective": {"ttft_s": 0.5}}])
    assert (program.tenant, program.objective.ttft_s) == ("acme", 0.5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"asked_ns": 1}, "line 2: asked_ns is before that of the line above"),
        ({"after": 5}, "line 2: no line above has a prompt that ends with block 5"),
        ({"blocks": list(range(7))}, "line 2: 13 blocks of 16 tokens are no prompt of 104 tokens"),
        ({"quotes": {"step": "step-0", "at": 6, "blocks": 2, "rest": 3}}, "line 2: it quotes 2 blocks from the 6th on"),
        ({"output_tokens": 0}, "line 2.*output_tokens"),
        ({"colour": "red"}, "line 2.*colour"),
        ({"blocks": [2**70]}, "line 2"),
    ],
)
def test_a_line_that_cannot_be_is_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    rows = [msgspec.to_builtins(row) for row in _simple().rows]
    rows[1] |= {"after": rows[0]["blocks"][-1], "blocks": []} | change
    (tmp_path / "day.jsonl").write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    with pytest.raises(LegatoError, match=named):
        Log(tmp_path / "day.jsonl")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, said in (
        ("missing", "No such file"),
        ("empty", "has no step"),
        ("binary", "line 1: JSON is malformed"),
        ("", "Is a directory"),
    ):
        with pytest.raises(LegatoError, match=said):
            Log(tmp_path / name)
