"""However an output is cut into chunks and attempts, its reader sees the same text, without gap, repeat or seam."""

import json
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from services.worker.engines import byte_tokenizer
from services.worker.engines.base import EngineRequest
from services.worker.output import OutputProcessor
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason
from shared.contracts.steps import Sampling

CORPUS = [
    "the bow lifts and the line holds",
    "a naïve café — très joli",
    "音楽 is 音 and the joy of it",
    "end of the END, </tool> and so on",
] * 3


def byte_level_bpe() -> Tokenizer:
    """The kind of most models of today: merged bytes, so that characters are cut between tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback_bpe() -> Tokenizer:
    """The kind of Llama 2 and Gemma: words begin with a mark, which is no space at the start of a text; unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        ["the bow lifts and the line holds"] * 3, trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    )
    description = json.loads(tokenizer.to_str())
    vocab = description["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


BYTES = Tokenizer.from_str(byte_tokenizer.build().decode())
BY_BYTE = {"bytes": BYTES, "byte-level BPE": byte_level_bpe()}
TOKENIZERS = BY_BYTE | {"byte-fallback BPE": byte_fallback_bpe()}

TEXTS = st.lists(
    st.sampled_from([*"abcEND </tool>.é音楽—😀", "the ", "line ", "END", "</tool>"]) | st.characters(codec="utf-8"), max_size=40
).map("".join)
CUTS = st.lists(st.integers(1, 9), max_size=30)
STOPS = st.lists(st.sampled_from(["END", "</tool>", "ND<", "音楽", "é音", "ee", " ", "he l"]), max_size=3, unique=True)
NAMES = st.sampled_from(sorted(TOKENIZERS))


def processor(
    tokenizer: Tokenizer, stop: Sequence[str], resumed: Sequence[int] = (), *, prompt: Sequence[int] = (), max_tokens: int = 10_000
) -> OutputProcessor:
    request = EngineRequest(
        step=StepId("s"), attempt=1, tokens=prompt, resumed=resumed, sampling=Sampling(stop=list(stop)), max_tokens=max_tokens
    )
    return OutputProcessor(tokenizer, (), request)


def pieces(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    """`tokens` in chunks of these sizes, the rest in one."""
    chunks = []
    for size in sizes:
        chunks.append(tokens[:size])
        tokens = tokens[size:]
    return [*chunks, tokens]


def in_attempts(
    tokenizer: Tokenizer, stop: Sequence[str], chunks: list[list[int]], cuts: list[bool], max_tokens: int
) -> tuple[str, list[int]]:
    """What a reader has in the end when a new attempt takes over before each chunk whose cut is set."""
    text, tokens = "", list[int]()
    output = processor(tokenizer, stop, max_tokens=max_tokens)
    for index, chunk in enumerate(chunks):
        if cuts[index % len(cuts)]:
            output = processor(tokenizer, stop, tokens, max_tokens=max_tokens)
        assert output.offset == len(tokens)
        assert output.full_text == text
        piece = output.push(chunk)
        text += piece.text
        tokens += piece.tokens
    return text, tokens


@given(name=NAMES, text=TEXTS, stop=STOPS, sizes=CUTS, cuts=st.lists(st.booleans(), min_size=1, max_size=8), limit=st.integers(1, 60))
@example(name="byte-fallback BPE", text="  ", stop=[], sizes=[1], cuts=[False], limit=2)
@example(name="byte-fallback BPE", text="    the", stop=[], sizes=[1, 1, 2], cuts=[True], limit=60)
def test_chunks_and_attempts_do_not_show(name: str, text: str, stop: list[str], sizes: list[int], cuts: list[bool], limit: int) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text).ids
    whole = processor(tokenizer, stop, max_tokens=limit)
    expected = whole.push(tokens)
    assert in_attempts(tokenizer, stop, pieces(tokens, sizes), cuts, limit) == (expected.text, expected.tokens)


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    """The token that is this one byte."""
    token = tokenizer.token_to_id(f"<0x{byte:02X}>")
    token = tokenizer.token_to_id(str(BYTES.id_to_token(byte))) if token is None else token
    assert token is not None
    return token


# Any tokens, or mostly the bytes of 音, and ones that cannot follow them.
GARBAGE = st.lists(st.integers(0, 2**16), max_size=150) | st.lists(st.sampled_from([-0xE9, -0x9F, -0xB3, -0xFF, 0, 40, 50]), max_size=150)


def garbage_of(tokenizer: Tokenizer, draws: list[int]) -> list[int]:
    return [byte_token(tokenizer, -draw) if draw < 0 else draw % tokenizer.get_vocab_size() for draw in draws]


@given(name=NAMES, draws=GARBAGE, stop=STOPS, sizes=CUTS, cuts=st.lists(st.booleans(), min_size=1, max_size=8))
@example(name="bytes", draws=[0xE9] * 150, stop=[], sizes=[40, 5, 60], cuts=[True, False])
def test_chunks_and_attempts_do_not_show_in_garbage_either(
    name: str, draws: list[int], stop: list[str], sizes: list[int], cuts: list[bool]
) -> None:
    tokens = garbage_of(TOKENIZERS[name], draws)
    one_by_one = in_attempts(TOKENIZERS[name], stop, [[token] for token in tokens], [False], 10_000)
    assert in_attempts(TOKENIZERS[name], stop, pieces(tokens, sizes), cuts, 10_000) == one_by_one


@given(name=st.sampled_from(sorted(BY_BYTE)), draws=st.lists(st.integers(0, 2**16), min_size=1, max_size=40))
def test_the_whole_text_is_that_of_a_full_decode(name: str, draws: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = [draw % tokenizer.get_vocab_size() for draw in draws]
    output = processor(tokenizer, [], max_tokens=len(tokens))
    assert "".join([output.push([token]).text for token in tokens]) == tokenizer.decode(tokens, skip_special_tokens=True)


@given(name=NAMES, prompt=st.sampled_from(["the bow", "a", "the line "]), text=TEXTS.filter(lambda text: "�" not in text))
@example(name="byte-fallback BPE", prompt="the bow", text=" lifts")
@example(name="byte-fallback BPE", prompt=" ", text="  the")
def test_an_output_goes_on_where_its_prompt_ended(name: str, prompt: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    before, tokens = tokenizer.encode(prompt).ids, tokenizer.encode(prompt + text).ids
    if not text or tokens[: len(before)] != before or len(tokens) == len(before):
        return  # the seam lies within a token
    output = processor(tokenizer, [], prompt=before, max_tokens=len(tokens) - len(before))
    shown = "".join([output.push([token]).text for token in tokens[len(before) :]])
    assert tokenizer.decode(before) + shown == tokenizer.decode(tokens)


@given(text=TEXTS, stop=STOPS.filter(bool), sizes=CUTS)
def test_a_stop_string_ends_the_text_where_it_is_first_complete(text: str, stop: list[str], sizes: list[int]) -> None:
    output = processor(BYTES, stop)
    shown = "".join([output.push(chunk).text for chunk in pieces([*text.encode()], sizes)])
    complete = min([text.find(each) + len(each) for each in stop if each in text], default=None)
    if complete is None:
        assert output.finish is None
        assert text.startswith(shown)
        return
    longest = max([len(each) for each in stop if text[:complete].endswith(each)])
    assert output.finish is FinishReason.STOP
    assert shown == text[: complete - longest]
    assert output.tokens == [*text[:complete].encode()]
