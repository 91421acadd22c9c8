"""The built programs: where they are, and running the regression runner."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "tests" / "shapes"
CASE_FILES = sorted(path for path in SHAPES.glob("*.json") if path.name != "case_file.schema.json")


def program(name: str) -> Path:
    build = os.environ.get("KVROPE_BUILD_DIR")
    if not build:
        pytest.skip("KVROPE_BUILD_DIR, which tools/test sets, names no build folder")
    return (ROOT / build / name).resolve()


def runner() -> Path:
    return program("kvrope-regress")


def regress(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [runner(), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=600,
    )
