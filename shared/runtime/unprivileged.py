"""Running a program as somebody else than root, where it refuses to be root (Postgres does).

The account is `postgres` if the machine has one, else `nobody`: initdb wants an account with a name, and making one would change the
machine for good. What the account must reach (the program, its data) may lie below directories that only root may enter, such as /root or a
temporary directory; those get the right to be passed through (o+x), not to be listed.
"""

import logging
import os
import pwd
import stat
from pathlib import Path

from shared.core.errors import LegatoError

_log = logging.getLogger(__name__)

ACCOUNTS = ("postgres", "nobody")
ENTER = stat.S_IXOTH
READ = stat.S_IROTH | stat.S_IRGRP


def unprivileged_account() -> tuple[int, int] | None:
    """(uid, gid) to run as; None when we are not root and stay who we are."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise LegatoError(f"running as root needs an account to run Postgres as: one of {', '.join(ACCOUNTS)}")


def give(path: Path, account: tuple[int, int] | None) -> None:
    """Make `path`, and all below it if it belongs to somebody else, the account's own."""
    if account is None or path.stat().st_uid == account[0]:
        return
    for folder, _, files in os.walk(path):
        for name in files:
            os.chown(os.path.join(folder, name), *account, follow_symlinks=False)
        if folder != str(path):
            os.chown(folder, *account)
    os.chown(path, *account)  # last, so that an interrupted change is taken up again


def open_way(path: Path, account: tuple[int, int] | None) -> None:
    """Let the account pass through every directory above `path`. Raises LegatoError if one is not ours to change."""
    for folder in path.resolve().parents if account else ():
        mode = folder.stat().st_mode
        if mode & ENTER or (account and folder.stat().st_uid == account[0]):
            continue
        try:
            folder.chmod(stat.S_IMODE(mode) | ENTER)
        except OSError as error:
            raise LegatoError(f"Postgres cannot run as root, and the account it runs as cannot pass through {folder}: {error}") from error
        _log.warning("%s may now be passed through by everybody (o+x): Postgres cannot run as root and must reach %s", folder, path)


def open_program(folder: Path, account: tuple[int, int] | None) -> None:
    """Let the account read and run what is installed in `folder` (an installation under umask 077 is root's alone)."""
    if account is None or _readable(folder):
        return
    for file in folder.rglob("*"):
        if not file.is_symlink():
            mode = stat.S_IMODE(file.stat().st_mode)
            file.chmod(mode | READ | (ENTER if mode & stat.S_IXUSR else 0))
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | READ | ENTER)  # last, as in `give`


def _readable(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IROTH)
