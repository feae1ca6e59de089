"""Files that a command writes: looked at before the work, and written with errors that people understand."""

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
    except OSError as error:
        raise LegatoError(f"{named}: cannot write it: {error.strerror}") from error


def write(file: Path, pieces: Iterable[bytes]) -> None:
    """Replace the file in one step; a device or a pipe is written to. Raises LegatoError."""
    new = file.with_name(f"{file.name}.new")
    try:
        if file.exists() and not file.is_file():
            _fill(file, pieces)
            return
        try:
            _fill(new, pieces)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise LegatoError(f"cannot write {file}: {error.strerror}") from error


def _fill(file: Path, pieces: Iterable[bytes]) -> None:
    with file.open("wb") as opened:
        opened.writelines(pieces)
