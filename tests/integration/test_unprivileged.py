import os
import stat
from pathlib import Path

import pytest

from shared.core.errors import LegatoError
from shared.runtime.unprivileged import give, open_program, open_way, unprivileged_account

STRANGER = (12345, 12345)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def deep(server_directory: Path) -> Path:
    path = server_directory / "closed" / "open" / "data"
    path.mkdir(parents=True)
    path.parent.parent.chmod(0o700)
    path.parent.chmod(0o755)
    return path


def test_the_way_is_opened_for_passing_and_not_for_looking(deep: Path, server_directory: Path) -> None:
    open_way(deep, STRANGER)
    assert [mode(folder) for folder in (server_directory, deep.parent.parent, deep.parent)] == [0o701, 0o701, 0o755]


def test_who_stays_who_he_is_changes_nothing(deep: Path, server_directory: Path) -> None:
    open_way(deep, None)
    give(deep, None)
    open_program(deep, None)
    assert [mode(folder) for folder in (server_directory, deep.parent.parent, deep.parent)] == [0o700, 0o700, 0o755]


def test_a_program_becomes_readable_and_nothing_else_becomes_executable(deep: Path) -> None:
    program, data, folder = deep / "program", deep / "data", deep / "folder"
    folder.mkdir(mode=0o700)
    program.touch(mode=0o700)
    data.touch(mode=0o600)
    deep.chmod(0o700)
    open_program(deep, STRANGER)
    assert [mode(path) & 0o007 for path in (deep, folder, program, data)] == [5, 5, 5, 4]


@as_root
def test_everything_below_is_given_away_and_links_are_not_followed(deep: Path, server_directory: Path) -> None:
    ours = server_directory / "ours"
    ours.touch()
    (deep / "folder").mkdir()
    (deep / "folder" / "file").touch()
    (deep / "link").symlink_to(ours)
    give(deep, STRANGER)
    assert {(deep / name).lstat().st_uid for name in ("", "folder", "folder/file", "link")} == {STRANGER[0]}
    assert ours.stat().st_uid == 0


@as_root
def test_root_has_somebody_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    account = unprivileged_account()
    assert account is not None
    assert account[0] != 0
    monkeypatch.setattr("shared.runtime.unprivileged.ACCOUNTS", ("no-such-account",))
    with pytest.raises(LegatoError, match="no-such-account"):
        unprivileged_account()
