"""Every Python block of README.md runs as it stands."""

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
