"""Every Python block of README.md runs as it stands; every test that it names is there."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


def python_blocks() -> list[tuple[int, str]]:
    """(line number, source) of each block."""
    text = README.read_text() if README.is_file() else ""
    return [
        (text.count("\n", 0, match.start(1)) + 1, match[1])
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]


BLOCKS = python_blocks()


def test_readme_has_python_blocks() -> None:
    assert README.is_file(), "README.md is missing"
    assert BLOCKS, "README.md has no ```python block"


@pytest.mark.parametrize("line, source", BLOCKS, ids=[f"line{line}" for line, _ in BLOCKS])
def test_block_runs(line: int, source: str) -> None:
    """Each block stands alone, as someone would paste it."""
    if "cuda" in source and "is_available" not in source and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    code = compile("\n" * (line - 1) + source, str(README), "exec")  # tracebacks then show README's lines
    exec(code, {"__name__": "readme"})


PROMISES = "## What is promised, and by which test"
TESTS = Path(__file__).parents[1]


def section(heading: str) -> str:
    text = README.read_text() if README.is_file() else ""
    if heading not in text:
        pytest.skip(f"README.md has no section {heading!r}")
    return text.partition(heading)[2].partition("\n## ")[0]


def test_tests_named_in_the_promises_exist() -> None:
    """`test_file.py::test_name`, or several as `test_file.py::{test_a, test_b}`; `Suite.Name` in C++."""
    text = section(PROMISES)
    in_python = [
        (file, name)
        for file, names in re.findall(r"`(test_\w+\.py)::(\w+|\{[^}]*\})`", text)
        for name in re.findall(r"\w+", names)
    ]
    in_cpp = re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", text)
    assert len(in_python) >= 20 and in_cpp
    missing = []
    for file, name in in_python:
        path = TESTS / "python" / file
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(), re.M):
            missing.append(f"{file}::{name}")
    programs = "".join(path.read_text() for path in (TESTS / "cpp").glob("*_test.cpp"))
    for suite, name in in_cpp:
        if not re.search(rf"\bTEST(?:_F|_P)?\({suite}, {name}\)", programs):
            missing.append(f"{suite}.{name}")
    assert missing == []
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if "`" not in row] == [], "a promise without a test"
