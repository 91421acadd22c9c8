"""kvrope-regress as a program, for the tests of its command line."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("KVROPE_BUILD_DIR", ROOT / "build")).absolute() / "kvrope-regress"

needs_program = pytest.mark.skipif(
    not PROGRAM.exists(), reason=f"there is no {PROGRAM.name} in {PROGRAM.parent.name}/"
)


def regress(*arguments, **options) -> subprocess.CompletedProcess:
    command = [str(argument) for argument in (PROGRAM, *arguments)]
    options = {"capture_output": True, "text": True, "timeout": 300} | options
    return subprocess.run(command, **options)


def write_cases(path: Path, *cases: dict, **document) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "cases": list(cases)} | document))
    return path


# What the file itself is no reason to refuse.
RAISES = {"id": "raises", "q_heads": 7}
REJECTED = {"id": "rejected", "q_heads": 7, "expect": {"error": ": k: "}}
MISMATCH = {"id": "mismatch", "tolerance": {"ulps": 0, "relative": 0}, "positions": {"start": 3}}
TOO_LARGE = {"id": "too-large", "num_tokens": 2_000_000_000, "q_heads": 64, "head_dim": 512}
