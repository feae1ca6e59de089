"""Loaders of recorded traffic: small files of their own, and the public ones where they are there."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Chain, Program
from shared.sim.workloads import workload

DATA = Path(__file__).parents[2] / "../shared/data"


def public(kind: str, path: str, settings: dict[str, Any] | None = None, seconds: float = 1e6) -> list[Program]:
    """All of a public trace; the test is skipped where it is not there."""
    if not (DATA / path).exists():
        pytest.skip(f"the public data is not there: {DATA / path}")
    return list(workload(kind, {"path": path} | (settings or {}), seconds, 1, DATA))


def reused(calls: list[Call], block_tokens: int) -> tuple[int, int]:
    """Full blocks of prompts that an infinite cache of prompts has, and all of them."""
    seen: set[int] = set()
    hits = blocks = 0
    for call in calls:
        hashes = Chain(call.prompt, block_tokens).first(call.prompt_tokens // block_tokens)
        hits += sum(block in seen for block in hashes)
        blocks += len(hashes)
        seen.update(hashes)
    return hits, blocks


MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 1536, "output_length": 30, "hash_ids": [0, 1, 4]}
"""


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    return tmp_path


def test_equal_ids_of_mooncake_are_equal_blocks(mooncake: Path) -> None:
    programs = list(workload("mooncake", {"path": "trace.jsonl"}, 100, 1, mooncake))
    calls = [program.calls[0] for program in programs]
    assert [call.prompt_tokens for call in calls] == [1_100, 600, 1_536]
    assert [call.output.tokens for call in calls] == [10, 20, 30]
    assert [[segment.tokens for segment in call.prompt] for call in calls] == [[512, 512, 76], [512, 88], [512, 512, 512]]
    first, second, third = (Chain(call.prompt, 512).first(call.prompt_tokens // 512) for call in calls)
    assert first == third[:2]
    assert first[:1] == second
    assert third[2] not in first


def test_mooncake_spreads_requests_inside_their_tick_by_the_seed(mooncake: Path) -> None:
    begins = [program.begins_s for program in workload("mooncake", {"path": "trace.jsonl"}, 100, 1, mooncake)]
    assert 0 <= begins[0] < begins[1] < 3 <= begins[2] < 6
    assert begins == [program.begins_s for program in workload("mooncake", {"path": "trace.jsonl"}, 100, 1, mooncake)]
    assert begins != [program.begins_s for program in workload("mooncake", {"path": "trace.jsonl"}, 100, 2, mooncake)]


def test_mooncake_again_shares_the_system_prompt_with_itself_and_no_more(mooncake: Path) -> None:
    programs = list(workload("mooncake", {"path": "trace.jsonl", "repeat": True, "rate": 10}, 20, 1, mooncake))
    assert len(programs) > 30
    assert [program.begins_s for program in programs] == sorted(program.begins_s for program in programs)
    assert len({program.id for program in programs}) == len(programs)
    before, after = programs[0].calls[0].prompt, programs[3].calls[0].prompt
    assert before[0] == after[0]
    assert not {segment.content for segment in before[1:]} & {segment.content for segment in after[1:]}


AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805910,396,109

2023-11-16 18:16:46.6805900,7,1
"""


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text(AZURE)
    return tmp_path


def test_azure_has_recorded_times_and_lengths_and_texts_of_their_own(azure: Path) -> None:
    programs = list(workload("azure", {"path": "trace.csv", "rate": 2.0}, 100, 1, azure))
    assert [program.begins_s for program in programs] == pytest.approx([0, 2, 30])
    assert [(call.prompt_tokens, call.output.tokens) for program in programs for call in program.calls] == [(374, 44), (396, 109), (7, 1)]
    assert len({program.calls[0].prompt[0].content for program in programs}) == 3


def test_a_trace_ends_when_the_time_does_or_goes_on_for_ever(azure: Path) -> None:
    assert len(list(workload("azure", {"path": "trace.csv"}, 30, 1, azure))) == 2
    assert len(list(workload("azure", {"path": "trace.csv"}, 1_000, 1, azure))) == 3
    again = [program.begins_s for program in workload("azure", {"path": "trace.csv", "repeat": True}, 161, 1, azure)]
    assert again == pytest.approx([0, 4, 60, 80, 84, 140, 160])  # a mean gap of 20 s between the end and the beginning


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("azure", "a,b\n1,2\n", "begins with 'a,b'"),
        ("azure", AZURE + "2023-11-16 18:16:47,many,1\n", "line 6.*many"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n\ufffd,1,2\n", "line 2"),
        ("azure", AZURE + "2023-11-16 18:15:47,1,1\n", "not in order of time"),
        ("mooncake", MOONCAKE + '{"timestamp": 0}\n', "line 4.*input_length"),
        ("mooncake", MOONCAKE + MOONCAKE.splitlines()[0], "not in order of time"),
        ("mooncake", MOONCAKE + MOONCAKE.splitlines()[0].replace("1100", "1000"), "line 4.*3 hash_ids are not one for each 512 of 1000"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_the_line(kind: str, text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(LegatoError, match=named):
        list(workload(kind, {"path": "trace"}, 100, 1, tmp_path))


def test_a_folder_is_no_trace_and_bytes_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match="is not there"):
        workload("azure", {"path": "."}, 100, 1, tmp_path)
    (tmp_path / "trace").write_bytes(b"\xff\xfe\x00")
    for kind in ("azure", "mooncake"):
        with pytest.raises(LegatoError, match="trace"):
            list(workload(kind, {"path": "trace"}, 100, 1, tmp_path))


def test_the_public_mooncake_trace_is_whole() -> None:
    programs = public("mooncake", "traces/mooncake_conversation_first30min.jsonl")
    assert len(programs) == 5_719
    assert programs[-1].begins_s < 1_800
    hits, blocks = reused([program.calls[0] for program in programs], 512)
    assert blocks == 140_758
    assert hits / blocks == pytest.approx(0.354, abs=0.001)  # of full blocks; of all ids, as the file counts them, 34.1%


def test_the_public_azure_trace_is_whole() -> None:
    programs = public("azure", "traces/azure_conv.csv")
    assert len(programs) == 19_366
    gaps = [later.begins_s - earlier.begins_s for earlier, later in itertools.pairwise(programs)]
    assert 1 / statistics.fmean(gaps) == pytest.approx(5.53, abs=0.01)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1.09, abs=0.01)
    assert statistics.fmean(program.calls[0].prompt_tokens for program in programs) == pytest.approx(1_155, abs=1)
