"""Fails when a Python file is over 400 lines or a function over 60 (docs/architecture.md, style)."""

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


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"], check=True, capture_output=True, text=True
    )
    found = [text for name in listed.stdout.split() if Path(name).exists() for text in complaints(Path(name))]
    sys.stdout.write("".join(f"{text}\n" for text in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
