"""Fails when a Python file is over 400 lines or a function over 60, and when a link is tracked: it would point out of somebody's clone."""

import ast
import subprocess
import sys
from pathlib import Path

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def complaints(path: Path) -> list[str]:
    """What is too long in one file."""
    text = path.read_text()
    lines = text.count("\n")
    found = [f"{path}: {lines} lines, at most {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES_MAX}")
    return found


def git(*words: str) -> list[str]:
    """Lines of git's answer."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> int:
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    found = [text for name in names if Path(name).exists() for text in complaints(Path(name))]
    links = [line.partition("\t")[2] for line in git("ls-files", "--stage") if line.startswith("120000 ")]
    found += [f"{name} is a symbolic link: leave it out of git" for name in links]
    sys.stdout.write("".join(f"{text}\n" for text in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
