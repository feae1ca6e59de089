"""From published bytes to a submission, or to what is wrong with it, by name."""

import msgspec
import pytest

from services.admission.reading import check, parse, seeded, step_from, trace_from
from services.admission.refusal import plain
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import ModelName, StepId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Sampling, Submission

CARD = ModelCard(
    name=ModelName("small"), tokenizer="t", chat_template="{{ messages }}", vocab_size=100, context_tokens=1_000, block_tokens=16
)


def wrong(body: str | bytes, bytes_max: int = 10_000) -> Problem:
    problem = parse(body.encode() if isinstance(body, str) else body, bytes_max)
    assert isinstance(problem, Problem)
    return problem


def read(**fields: object) -> Submission:
    submission = parse(msgspec.json.encode({"model": "small", "prompt": "hi", **fields}), 10_000)
    assert isinstance(submission, Submission)
    return submission


def test_a_submission_is_read_with_all_its_fields() -> None:
    submission = parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"sampling":{"temperature":0},"priority":3}', 1_000)
    assert isinstance(submission, Submission)
    assert submission.messages is not None
    assert (submission.messages[0].content, submission.sampling.temperature, submission.priority) == ("hi", 0, 3)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ("", "", "no JSON"),
        ("{", "", "no JSON"),
        (b"\xff\xfe", "", "no JSON"),
        ("[]", "", "Expected object"),
        ('{"prompt":"x"}', "", "model"),
        ('{"model":1,"prompt":"x"}', "model", "Expected str"),
        ('{"model":"m","prompt":1.5}', "prompt", "Expected str | array | null"),
        ('{"model":"m","prompt":[1,"a"]}', "prompt[1]", "Expected int"),
        ('{"model":"m","prompt":"x","sampling":{"temperature":3}}', "sampling.temperature", "<= 2"),
        ('{"model":"m","prompt":"x","sampling":{"top_k":9999999999999}}', "sampling.top_k", "<= 2147483647"),
        ('{"model":"m","prompt":"x","sampling":{"n":2}}', "sampling.n", "there are: max_tokens"),
        ('{"model":"m","prompt":"x","streem":true}', "streem", "there are: model"),
        ('{"model":"m","messages":[{"role":"user","text":"x"}]}', "messages[0].text", "there are: role, content"),
        ('{"model":"m","messages":[]}', "messages", "length >= 1"),
        ('{"model":"m"}', "messages", "none of them is there"),
        ('{"model":"m","prompt":"x","messages":[{"role":"user"}]}', "messages", "not both"),
        ('{"model":"m","prompt":"x","history":"5f1c9a0e7b3d48626d1f0c9be8a7345d"}', "messages", "not both"),
        ('{"model":"m","history":"5f1c"}', "history", "matching regex"),
        ('{"model":"m","history":"5f1c9a0e7b3d48626d1f0c9be8a7345d\\n"}', "history", "length <= 32"),
        ('{"model":"m","prompt":"x","workflow":"a.b"}', "workflow", "letters, digits"),
    ],
)
def test_what_is_wrong_is_said_by_name(body: str | bytes, param: str, words: str) -> None:
    problem = wrong(body)
    assert problem.reason is Reason.INVALID
    assert problem.param == param
    assert words in problem.message


def test_a_body_over_the_limit_is_not_even_parsed() -> None:
    assert wrong("x" * 101, bytes_max=100).reason is Reason.TOO_LARGE


def test_deep_nesting_is_refused_not_followed() -> None:
    calls = '[{"a":' * 1 + "[" * 100_000
    assert wrong('{"model":"m","messages":[{"role":"a","tool_calls":' + calls, bytes_max=1_000_000).reason is Reason.INVALID


def test_text_that_quotes_a_stranger_is_printable_and_short() -> None:
    assert plain("a\x00b\nc\u2028d") == "a b c d"
    assert len(plain("x" * 10_000)) == 500
    problem = wrong('{"model":"m","a\\u0000b' + "c" * 5_000 + '":1}')
    assert problem.message.isprintable()
    assert problem.param.isprintable()
    assert len(problem.param) <= 500


@pytest.mark.parametrize("field", ["min_p", "seed", "logprobs", "stop"])
def test_a_sampling_field_that_the_engine_cannot_take_is_refused_by_name(field: str) -> None:
    card = msgspec.structs.replace(CARD, unsupported=[field])
    given = {"min_p": 0.1, "seed": 1, "logprobs": 0, "stop": ["x"]}[field]
    problem = check(read(sampling={field: given}), card)
    assert problem is not None
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, f"sampling.{field}")
    assert check(read(sampling={"temperature": 0.5}), card) is None


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"stop_token_ids": [100]}, "sampling.stop_token_ids"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ({"logit_bias": {"100": 1}}, "sampling.logit_bias"),
        ({"logit_bias": {"-1": 1}}, "sampling.logit_bias"),
        ({"logit_bias": {"x": 1}}, "sampling.logit_bias"),
        ({"logit_bias": {"²": 1}}, "sampling.logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "sampling.logit_bias"),
    ],
)
def test_token_ids_beyond_the_vocabulary_are_refused(sampling: dict[str, object], param: str) -> None:
    problem = check(read(sampling=sampling), CARD)
    assert problem is not None
    assert (problem.reason, problem.param) == (Reason.INVALID, param)


def test_token_ids_of_the_vocabulary_are_taken() -> None:
    assert check(read(sampling={"stop_token_ids": [0, 99], "logit_bias": {"0": 1, "99": -1}}), CARD) is None


def test_a_model_without_a_template_cannot_chat() -> None:
    card = msgspec.structs.replace(CARD, chat_template="")
    submission = parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', 1_000)
    assert isinstance(submission, Submission)
    problem = check(submission, card)
    assert problem is not None
    assert problem.param == "messages"
    assert check(read(), card) is None


def test_a_seed_follows_from_the_step_id_wherever_chance_decides() -> None:
    first = seeded(Sampling(), StepId("a"), CARD)
    assert first.seed is not None
    assert 0 <= first.seed < 2**31
    assert first == seeded(Sampling(), StepId("a"), CARD)
    assert first.seed != seeded(Sampling(), StepId("b"), CARD).seed


def test_no_seed_is_given_where_it_has_no_use_or_one_is_there() -> None:
    assert seeded(Sampling(seed=5), StepId("a"), CARD).seed == 5
    assert seeded(Sampling(temperature=0), StepId("a"), CARD).seed is None
    assert seeded(Sampling(), StepId("a"), msgspec.structs.replace(CARD, unsupported=["seed"])).seed is None


@pytest.mark.parametrize(
    ("subject", "step"), [("legato.submit.a-B_9", "a-B_9"), ("legato.submit.é", None), ("legato.submit." + "x" * 129, None)]
)
def test_the_step_id_is_the_subjects_last_token(subject: str, step: str | None) -> None:
    assert step_from(subject) == step


def test_only_a_valid_trace_is_carried_on() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_from({"traceparent": trace}) == trace
    assert trace_from({"traceparent": trace.upper()}) == ""
    assert trace_from({"traceparent": "junk"}) == ""
    assert trace_from({}) == ""


@pytest.mark.parametrize(
    "sampling",
    [{"json_schema": '{"type":"object"}'}, {"json_schema": "{}"}, {"regex": "a+"}, {"ebnf": 'root ::= "a"'}, {"json_schema": None}],
)
def test_one_form_of_the_output_can_be_asked_for(sampling: dict[str, object]) -> None:
    assert read(sampling=sampling).sampling == msgspec.convert(sampling, Sampling)


@pytest.mark.parametrize(
    ("sampling", "param", "words"),
    [
        ({"regex": "a", "json_schema": "{}"}, "regex", "give one of json_schema, regex, ebnf; there are json_schema and regex"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens", "regex says where the output ends"),
        ({"ebnf": "a", "ignore_eos": True}, "ignore_eos", "ebnf says where the output ends"),
        ({"json_schema": "{"}, "json_schema", "json_schema is no JSON"),
        ({"json_schema": "[]"}, "json_schema", "a JSON object"),
        ({"json_schema": '{"items":' * 64 + "{}" + "}" * 64}, "json_schema", "at most 64 levels"),
        ({"json_schema": "[" * 9_000}, "json_schema", "json_schema"),
        ({"regex": ""}, "regex", "length >= 1"),
        ({"regex": "a" * 32_769}, "regex", "length <= 32768"),
        ({"json_schema": {"type": "object"}}, "json_schema", "Expected str | null, got object"),
    ],
)
def test_a_form_of_the_output_that_cannot_be_is_refused_by_name(sampling: dict[str, object], param: str, words: str) -> None:
    problem = wrong(msgspec.json.encode({"model": "small", "prompt": "hi", "sampling": sampling}), 100_000)
    assert (problem.reason, problem.param) == (Reason.INVALID, f"sampling.{param}")
    assert words in problem.message


def test_a_form_that_the_engine_cannot_follow_is_refused_by_name() -> None:
    problem = check(read(sampling={"regex": "a"}), msgspec.structs.replace(CARD, unsupported=["regex"]))
    assert problem == Problem(
        reason=Reason.UNSUPPORTED, message="small cannot take regex on this engine; leave it out", param="sampling.regex"
    )
