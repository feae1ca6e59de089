"""The output processor: where an output ends, and what of it may be seen when."""

import pytest
from tokenizers import Tokenizer

from services.worker.engines import byte_tokenizer
from services.worker.engines.base import EngineRequest
from services.worker.output import OutputProcessor, Piece
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason
from shared.contracts.output import TokenLogprob, TopLogprob
from shared.contracts.steps import Sampling

TOKENIZER = Tokenizer.from_str(byte_tokenizer.build().decode())
MESSAGE_END, END_OF_TEXT = byte_tokenizer.EOS_TOKEN_IDS


def processor(sampling: Sampling | None = None, *, resumed: bytes | list[int] = b"", max_tokens: int = 1000) -> OutputProcessor:
    request = EngineRequest(
        step=StepId("step"), attempt=1, tokens=[1], resumed=list(resumed), sampling=sampling or Sampling(), max_tokens=max_tokens
    )
    return OutputProcessor(TOKENIZER, byte_tokenizer.EOS_TOKEN_IDS, request)


def push(output: OutputProcessor, text: str | bytes, *more: int) -> Piece:
    return output.push([*(text.encode() if isinstance(text, str) else text), *more])


def test_text_comes_as_its_tokens_come() -> None:
    output = processor()
    assert [push(output, part).text for part in ("Hel", "lo", " world")] == ["Hel", "lo", " world"]
    assert (output.full_text, output.offset, output.finish) == ("Hello world", 11, None)


def test_a_character_is_shown_once_it_is_complete() -> None:
    output = processor()
    assert [push(output, part).text for part in (b"a\xe9", b"\x9f", b"\xb3b")] == ["a", "", "音b"]


def test_a_character_that_never_completes_is_shown_at_the_end_as_a_full_decode_would() -> None:
    output = processor(max_tokens=3)
    assert push(output, b"a\xe9\x9f") == Piece(tokens=[97, 0xE9, 0x9F], text="a�", finish=FinishReason.LENGTH)


def test_a_replacement_character_of_the_text_itself_is_only_late() -> None:
    output = processor()
    assert [push(output, part).text for part in ("�", "�", "x")] == ["", "", "��x"]


def test_garbage_is_not_held_back_for_ever() -> None:
    output = processor()
    assert len(push(output, b"\xff" * 100).text) == 96


def test_max_tokens_ends_with_length_and_drops_what_is_beyond() -> None:
    output = processor(max_tokens=3)
    assert push(output, "abcdef") == Piece(tokens=[97, 98, 99], text="abc", finish=FinishReason.LENGTH)
    assert push(output, "more") == Piece(finish=FinishReason.LENGTH)
    assert output.tokens == [97, 98, 99]


@pytest.mark.parametrize("eos", [MESSAGE_END, END_OF_TEXT])
def test_an_end_token_stops_the_output_counts_and_is_not_seen(eos: int) -> None:
    output = processor()
    assert push(output, "ab", eos, 99) == Piece(tokens=[97, 98, eos], text="ab", finish=FinishReason.STOP)


def test_an_end_token_is_passed_over_when_asked() -> None:
    output = processor(Sampling(ignore_eos=True))
    assert push(output, "ab", MESSAGE_END, 99) == Piece(tokens=[97, 98, MESSAGE_END, 99], text="abc")


def test_a_stop_token_of_the_request_stops_even_when_end_tokens_do_not() -> None:
    output = processor(Sampling(ignore_eos=True, stop_token_ids=[ord(".")]))
    assert push(output, "One. Two.") == Piece(tokens=[*b"One."], text="One", finish=FinishReason.STOP)


def test_stop_tokens_do_not_count_before_min_tokens() -> None:
    output = processor(Sampling(min_tokens=3, stop_token_ids=[ord(".")]))
    assert push(output, "a").finish is None
    assert push(output, "..") == Piece(tokens=[*b".."], text="..")
    assert push(output, ".b") == Piece(tokens=[*b"."], text="", finish=FinishReason.STOP)


def test_a_stop_token_in_the_last_place_is_a_stop_and_not_a_length() -> None:
    output = processor(max_tokens=3)
    assert push(output, "ab", MESSAGE_END).finish is FinishReason.STOP


def test_a_stop_string_is_cut_off_and_its_tokens_kept_up_to_the_one_that_completed_it() -> None:
    output = processor(Sampling(stop=["END"]))
    assert push(output, "text END and more") == Piece(tokens=[*b"text END"], text="text ", finish=FinishReason.STOP)


def test_what_may_become_a_stop_string_waits_until_it_is_decided() -> None:
    output = processor(Sampling(stop=["</tool>"]))
    assert [push(output, part).text for part in ("a</", "to", "p</tool", "s")] == ["a", "", "</top", "</tools"]


def test_a_stop_string_across_chunks_and_characters_is_found() -> None:
    output = processor(Sampling(stop=["音楽"]))
    parts = [push(output, part) for part in (b"a\xe9", b"\x9f\xb3\xe6", b"\xa5", b"\xbdz")]
    assert [part.text for part in parts] == ["a", "", "", ""]
    assert (parts[-1].finish, parts[-1].tokens) == (FinishReason.STOP, [0xBD])


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert push(processor(Sampling(stop=["bcde", "cd"])), "abcdef").text == "ab"
    assert push(processor(Sampling(stop=["cd", "bcd"])), "abcdef").text == "a"


def test_an_undecided_stop_string_is_shown_when_the_output_ends_otherwise() -> None:
    assert push(processor(Sampling(stop=["END"]), max_tokens=4), "a EN").text == "a EN"
    assert push(processor(Sampling(stop=["END"])), "a EN", MESSAGE_END) == Piece(
        tokens=[*b"a EN", MESSAGE_END], text="a EN", finish=FinishReason.STOP
    )


def test_what_is_undecided_is_not_shown_when_another_attempt_may_go_on() -> None:
    output = processor(Sampling(stop=["END"]))
    assert output.push([*b"a EN"], finish=FinishReason.CANCELLED).text == "a "
    again = processor(Sampling(stop=["END"]), resumed=b"a EN")
    assert push(again, "OUGH").text == "ENOUGH"


def test_an_end_that_only_the_engine_knows_is_taken_over() -> None:
    output = processor()
    assert output.push([*b"ab\xe9"], finish=FinishReason.STOP) == Piece(tokens=[*b"ab\xe9"], text="ab�", finish=FinishReason.STOP)


def test_a_resumed_output_says_only_the_rest() -> None:
    output = processor(resumed=b"a\xe9\x9f", max_tokens=5)
    assert (output.offset, output.full_text) == (3, "a")
    assert push(output, b"\xb3bc") == Piece(tokens=[0xB3, 98], text="音b", finish=FinishReason.LENGTH)
    assert (output.offset, output.full_text) == (5, "a音b")


def test_a_stop_string_across_the_seam_is_found() -> None:
    output = processor(Sampling(stop=["</tool>"]), resumed=b"x</to")
    assert push(output, "ol>y") == Piece(tokens=[*b"ol>"], text="", finish=FinishReason.STOP)
    assert output.full_text == "x"


@pytest.mark.parametrize(
    ("resumed", "finish"),
    [
        ([*b"abcde"], FinishReason.LENGTH),
        ([*b"abEND"], FinishReason.STOP),
        ([*b"a", MESSAGE_END], FinishReason.STOP),
        ([*b"a."], FinishReason.STOP),
        ([*b"abEN"], None),
    ],
)
def test_an_output_that_was_complete_when_its_attempt_was_lost_is_known_to_be(resumed: list[int], finish: FinishReason | None) -> None:
    assert processor(Sampling(stop=["END"], stop_token_ids=[ord(".")]), resumed=resumed, max_tokens=5).finish is finish


def test_logprobs_are_given_their_texts_and_end_with_the_tokens() -> None:
    output = processor(max_tokens=1)
    plain = [
        TokenLogprob(token=token, text="", logprob=-0.5, top=[TopLogprob(token=MESSAGE_END, text="", logprob=-1.0)]) for token in b"ab"
    ]
    assert output.push([*b"ab"], plain).logprobs == [
        TokenLogprob(token=97, text="a", logprob=-0.5, top=[TopLogprob(token=MESSAGE_END, text="<|im_end|>", logprob=-1.0)])
    ]
