"""Files that a command writes: looked at before the work, and written with errors that people understand."""

import os
from collections.abc import Iterable
from pathlib import Path

from shared.core.errors import LegatoError


def check_place(file: Path, option: str, example: str) -> None:
    """Before minutes of work: raises LegatoError where the file cannot be. `option`: how it was named (empty: as an argument)."""
    named = f"{option} {file}".strip()
    try:
        if file.is_dir():
            raise LegatoError(f"{named}: it is a directory; name a file, such as {example}")
        if not file.absolute().parent.is_dir():
            raise LegatoError(f"{named}: there is no directory {file.absolute().parent}")
        if _is_replaced(file):
            new = _beside(file)
            new.touch()
            new.unlink()
    except OSError as error:
        raise LegatoError(f"{named}: cannot write it: {error.strerror}") from error


def write(file: Path, pieces: Iterable[bytes]) -> None:
    """Replace the file in one step; a device, a pipe and what a link leads to are written to. Raises LegatoError."""
    try:
        if not _is_replaced(file):
            _fill(file, pieces)
            return
        new = _beside(file)
        try:
            _fill(new, pieces)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise LegatoError(f"cannot write {file}: {error.strerror}") from error


def _is_replaced(file: Path) -> bool:
    """Not a link: it would be gone. /dev/stdout is one, and leads to a file where the output goes into one."""
    return not file.is_symlink() and (file.is_file() or not file.exists())


def _beside(file: Path) -> Path:
    """Where it is filled: nobody else's, and no longer a name than the file's own may be."""
    return file.with_name(f".legato-{os.getpid()}.new")


def _fill(file: Path, pieces: Iterable[bytes]) -> None:
    with file.open("wb") as opened:
        opened.writelines(pieces)
