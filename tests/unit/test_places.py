"""What a command writes is there whole, or it is said why not."""

import os
from pathlib import Path

import pytest

from legato.places import check_place, write
from shared.core.errors import LegatoError


def test_a_file_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "it", [b"old"])
    write(tmp_path / "it", [b"n", b"ew"])
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("it", b"new")]


def test_what_cannot_be_made_leaves_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "it", [b"old"])
    with pytest.raises(TypeError):
        write(tmp_path / "it", [b"half", None])  # type: ignore[list-item]
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("it", b"old")]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe, [b"text"])
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("place", "said"),
    [("no/it", "--html .*/no/it: there is no directory .*/no"), (".", r"it is a directory; name a file, such as it\.html")],
)
def test_a_place_is_looked_at_before(place: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=said):
        check_place(tmp_path / place, "--html", "it.html")


def test_a_name_that_is_too_long_is_said(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=r"cannot write .*: File name too long"):
        write(tmp_path / ("x" * 300), [])


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    link, file = tmp_path / "latest", tmp_path / "it"
    link.symlink_to(file)
    for text in (b"old", b"new"):
        write(link, [text])
    assert link.is_symlink()
    assert file.read_bytes() == b"new"


def test_what_lies_beside_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "it.new").write_bytes(b"mine")
    check_place(tmp_path / "it", "--html", "it.html")
    write(tmp_path / "it", [b"text"])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"it": b"text", "it.new": b"mine"}


def test_a_name_may_be_as_long_as_any(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)
    check_place(file, "--html", "it.html")
    write(file, [b"text"])
    assert file.read_bytes() == b"text"


def test_a_place_where_nothing_can_be_made_is_said_before() -> None:
    with pytest.raises(LegatoError, match="--html /proc/it: cannot write it: "):
        check_place(Path("/proc/it"), "--html", "it.html")
