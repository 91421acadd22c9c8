"""The regression runner as a program: where it is, and running it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "tests" / "shapes"
CASE_FILES = sorted(path for path in SHAPES.glob("*.json") if path.name != "case_file.schema.json")


def runner() -> Path:
    build = os.environ.get("KVROPE_BUILD_DIR")
    if not build:
        pytest.skip("KVROPE_BUILD_DIR, which tools/test sets, names no build folder")
    return (ROOT / build / "kvrope-regress").resolve()


def regress(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [runner(), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
    )
