"""Writes what docs/ has of the contracts: `python docs/generate.py`.

--check writes nothing, and exits 1 when a file is not as it would be written.
--golden writes the golden bytes of the tests anew instead. That is a decision: other programs read these bytes, and older releases too.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from services.gateway.openapi import openapi
from shared.contracts import document

DOCS = Path(__file__).parent
GOLDEN = DOCS.parent / "tests" / "unit" / "golden"


def wanted() -> dict[Path, bytes]:
    """The generated documents."""
    files = {DOCS / name: content for name, content in document.files()}
    return files | {DOCS / "openapi.json": document.pretty(openapi())}


def golden() -> dict[Path, bytes]:
    """The encoded examples, byte for byte."""
    return {GOLDEN / f"{name}.json": msgspec.json.encode(example) for name, example in document.example_names().items()}


def stale(files: dict[Path, bytes], folder: Path) -> Iterable[Path]:
    """What differs, is missing, or is left over."""
    for path in sorted({*files, *folder.glob("*.json")}):
        if path not in files or not path.exists() or path.read_bytes() != files[path]:
            yield path


def write(files: dict[Path, bytes], folder: Path) -> None:
    """Make the files so, and remove what is left over."""
    for path in list(stale(files, folder)):
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
        else:
            path.unlink()
        print(f"{'wrote' if path in files else 'removed'} {path.relative_to(DOCS.parent)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--golden", action="store_true")
    given = parser.parse_args()
    files, folder = (golden(), GOLDEN) if given.golden else (wanted(), DOCS / "schemas")
    if not given.check:
        write(files, folder)
        return 0
    outdated = list(stale(files, folder))
    for path in outdated:
        print(f"{path.relative_to(DOCS.parent)} is not current: python docs/generate.py", file=sys.stderr)
    return int(bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
