"""Chat templates and tokenisers, with a real tokenizer whose tokens are bytes."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tokenizers import Tokenizer

from services.admission.tokenising import INLINE_BYTES, Encoded, Tokenisers
from services.worker.engines import byte_tokenizer
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import ModelName
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage, Submission
from shared.core.blocks import block_hashes

CARD = ModelCard(
    name=ModelName("bytes"),
    tokenizer="bytes.json",
    chat_template=byte_tokenizer.CHAT_TEMPLATE,
    vocab_size=byte_tokenizer.VOCAB_SIZE,
    context_tokens=1_000,
    block_tokens=4,
)
FILES = {"bytes.json": byte_tokenizer.build(), "broken.json": b"{}"}


class Store:
    """The object store, counting."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fetch(self, name: str) -> bytes | None:
        self.asked.append(name)
        return FILES.get(name)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def tokenisers(store: Store) -> AsyncIterator[Tokenisers]:
    tokenisers = Tokenisers(store.fetch, kept=2, threads=1)
    yield tokenisers
    tokenisers.close()


def chat(*messages: tuple[str, str]) -> Submission:
    return Submission(model="bytes", messages=[ChatMessage(role=role, content=content) for role, content in messages])


def card(**changes: object) -> ModelCard:
    return msgspec.structs.replace(CARD, **changes)


async def encoded(tokenisers: Tokenisers, submission: Submission, card: ModelCard = CARD, size: int = 0) -> Encoded:
    result = await tokenisers.encode(submission, card, size)
    assert isinstance(result, Encoded), result
    return result


async def refused(tokenisers: Tokenisers, submission: Submission, card: ModelCard = CARD) -> Problem:
    result = await tokenisers.encode(submission, card, 0)
    assert isinstance(result, Problem)
    return result


async def test_a_text_becomes_tokens_and_block_hashes(tokenisers: Tokenisers) -> None:
    result = await encoded(tokenisers, Submission(model="bytes", prompt="Hé, you"))
    assert result.tokens == list("Hé, you".encode())
    assert result.blocks == block_hashes(result.tokens, 4)


async def test_a_conversation_is_written_as_its_template_says(tokenisers: Tokenisers) -> None:
    result = await encoded(tokenisers, chat(("system", "Be brief."), ("user", "Hi")))
    text = Tokenizer.from_buffer(FILES["bytes.json"]).decode(result.tokens, skip_special_tokens=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert 257 in result.tokens  # the special token, not its letters


async def test_token_ids_are_taken_as_they_are(tokenisers: Tokenisers) -> None:
    assert (await encoded(tokenisers, Submission(model="bytes", prompt=[1, 2, 258]))).tokens == [1, 2, 258]


@pytest.mark.parametrize("token", [-1, 259, 10**30])
async def test_token_ids_beyond_the_vocabulary_are_refused(tokenisers: Tokenisers, token: int) -> None:
    problem = await refused(tokenisers, Submission(model="bytes", prompt=[1, token, 2]))
    assert (problem.reason, problem.param) == (Reason.INVALID, "prompt")


async def test_tokens_of_the_tokenizer_that_the_engine_does_not_have_are_refused(tokenisers: Tokenisers) -> None:
    problem = await refused(tokenisers, chat(("user", "Hi")), card(vocab_size=256))
    assert (problem.reason, problem.param) == (Reason.INVALID, "messages")


async def test_an_empty_prompt_is_refused(tokenisers: Tokenisers) -> None:
    assert (await refused(tokenisers, Submission(model="bytes", prompt=""))).reason is Reason.INVALID


async def test_long_prompts_give_the_same_tokens_as_short_ones(tokenisers: Tokenisers) -> None:
    text = "many words " * 1_000
    inline = await encoded(tokenisers, Submission(model="bytes", prompt=text), size=0)
    in_thread = await encoded(tokenisers, Submission(model="bytes", prompt=text), size=INLINE_BYTES + 1)
    assert inline == in_thread
    assert inline.tokens == list(text.encode())


async def test_what_a_template_raises_is_told_to_the_caller(tokenisers: Tokenisers) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    problem = await refused(tokenisers, chat(("user", "Hi")), card(chat_template=template))
    assert (problem.reason, problem.param) == (Reason.INVALID, "messages")
    assert "roles must alternate" in problem.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.missing.deeper }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
async def test_a_template_that_fails_or_reaches_out_refuses_and_does_no_harm(tokenisers: Tokenisers, template: str) -> None:
    assert (await refused(tokenisers, chat(("user", "Hi")), card(chat_template=template))).reason is Reason.INVALID


async def test_templates_have_what_they_expect_around_them(tokenisers: Tokenisers) -> None:
    template = (
        "{%- for message in messages %}\n"
        "    {%- if message.role == 'skip' %}{% continue %}{% endif %}\n"
        "    {{- bos_token + message.role + eos_token }}{{ {'a': '<é>'} | tojson }}\n"
        "{%- endfor %}"
    )
    submission = chat(("skip", "-"), ("user", "-"))
    result = await encoded(tokenisers, submission, card(chat_template=template, bos_token="[", eos_token="]"))
    assert bytes(result.tokens).decode() == '[user]{"a": "<é>"}'


async def test_a_tokenizer_is_fetched_once_also_when_many_ask_at_once(tokenisers: Tokenisers, store: Store) -> None:
    prompt = Submission(model="bytes", prompt="Hi")
    results = await asyncio.gather(*(tokenisers.encode(prompt, CARD, 0) for _ in range(20)))
    assert results == [results[0]] * 20
    assert store.asked == ["bytes.json"]


async def test_only_so_many_tokenizers_are_kept(tokenisers: Tokenisers, store: Store) -> None:
    for name in ("a.json", "b.json", "c.json", "a.json"):
        FILES[name] = FILES["bytes.json"]
        await encoded(tokenisers, Submission(model="bytes", prompt="Hi"), card(tokenizer=name))
    assert store.asked == ["a.json", "b.json", "c.json", "a.json"]


async def test_a_template_that_cannot_be_compiled_is_no_fault_of_the_caller(tokenisers: Tokenisers) -> None:
    assert (await refused(tokenisers, chat(("user", "Hi")), card(chat_template="{% broken"))).reason is Reason.INTERNAL


@pytest.mark.parametrize("name", ["absent.json", "broken.json"])
async def test_a_tokenizer_that_is_absent_or_broken_is_no_fault_of_the_caller(tokenisers: Tokenisers, name: str) -> None:
    problem = await refused(tokenisers, Submission(model="bytes", prompt="Hi"), card(tokenizer=name))
    assert problem.reason is Reason.INTERNAL
