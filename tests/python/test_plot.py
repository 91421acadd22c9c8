"""tools/plot.py on a small document."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runner import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import plot  # noqa: E402


def plotted(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "plot.py", *arguments]
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


def times(**microseconds: float) -> dict:
    return {
        name.replace("_", " "): {"microseconds": us, "gb_per_second": 1000 / us}
        for name, us in microseconds.items()
    }


def measured(kind: str, tokens: int, l2: str, scale: float) -> dict:
    return {
        "name": f"flash-bf16/{kind}/num_tokens={tokens}",
        "l2": l2,
        "num_tokens": tokens,
        "times": times(
            kvrope=scale,
            memcpy=0.9 * scale,
            sglang=1.2 * scale,
            kvrope_without_PDL=1.1 * scale,
            sglang_without_PDL=2.2 * scale,
        ),
    }


MEASURED = [
    measured("decode", 1, "warm", 1),
    measured("decode", 8, "warm", 1.25),
    measured("decode", 64, "warm", 2),
    measured("prefill", 4096, "rotating", 30),
    {**measured("prefill", 64, "warm", 3), "name": "variant/mha/num_tokens=64"},
]


def grown(case: str, tokens: int, l2: str, us: float, floor: str = "copy") -> dict:
    return {
        "name": case,
        "l2": l2,
        "num_tokens": tokens,
        "tags": ["growth", l2],
        "times": times(kvrope=us, **{floor: us / 2}),
    }


GROWN = [
    *(grown(f"flash-bf16/decode/num_tokens={t}", t, "warm", t) for t in (1, 2)),
    *(grown(f"flash-bf16/prefill/num_tokens={t}", t, "rotating", 2 * t) for t in (2, 4, 128)),
    *(grown(f"flash-bf16/decode/head_dim={d}", 64, "warm", d / 32, "memcpy") for d in (256, 32, 64, 128)),
    grown("flash-bf16/decode/block_size=8", 64, "warm", 3),
]
RAN = [{"name": f"case{i}", "largest_error": {"q_out": 0.1 * i, "key_cache": 0}} for i in range(5)]


def document(path: Path, results: list) -> Path:
    path.write_text(json.dumps({"results": results}))
    return path


def test_what_is_drawn() -> None:
    assert plot.throughput(MEASURED + GROWN) == {
        ("flash-bf16", "tokens"): {
            "kvrope, warm": {1: 1000, 8: 800, 64: 500},
            "memcpy, warm": {1: 1000 / 0.9, 8: 1000 / 1.125, 64: 1000 / 1.8},
            "kvrope, rotating": {4096: 1000 / 30},
            "memcpy, rotating": {4096: 1000 / 27},
        }
    }
    ratios = plot.ratios(MEASURED + GROWN)["flash-bf16", "tokens"]
    assert set(ratios) == {
        f"sglang{pdl}, {l2}" for pdl in ("", " without PDL") for l2 in ("warm", "rotating")
    }
    assert ratios["sglang, warm"] == pytest.approx({1: 1.2, 8: 1.2, 64: 1.2})
    assert ratios["sglang without PDL, rotating"] == pytest.approx({4096: 2.0})
    assert plot.errors(RAN + MEASURED) == {
        "q_out": pytest.approx([0, 0.1, 0.2, 0.3, 0.4]),
        "key_cache": [0] * 5,
    }


def test_growth() -> None:
    assert plot.growth(MEASURED + GROWN) == {
        ("flash-bf16", "num_tokens"): {
            "kvrope, warm": {1: 1, 2: 2},
            "copy, warm": {1: 0.5, 2: 1},
            "kvrope, rotating": {2: 4, 4: 8, 128: 256},
            "copy, rotating": {2: 2, 4: 4, 128: 128},
        },
        ("flash-bf16", "head_dim"): {
            "kvrope, T = 64, warm": {32: 1, 64: 2, 128: 4, 256: 8},
            "memcpy, T = 64, warm": {32: 0.5, 64: 1, 128: 2, 256: 4},
        },
    }
    assert plot.growth(MEASURED) == {}


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = plotted(
        document(tmp_path / "a.json", MEASURED + GROWN), document(tmp_path / "b.json", RAN), "--out", tmp_path / "png"
    )
    assert result.returncode == 0 and not result.stderr, result.stderr
    pictures = [tmp_path / "png" / name for name in ("throughput.png", "peers.png", "growth.png", "error.png")]
    assert result.stdout.split() == [str(path) for path in pictures]
    for path in pictures:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = plotted(document(tmp_path / "b.json", RAN), "--out", tmp_path)
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        f"plot: nothing to draw in {name}, which needs 4 sizes of a cache"
        for name in ("throughput.png", "peers.png", "growth.png")
    ]
    assert plotted(document(tmp_path / "c.json", []), "--out", tmp_path).returncode == 2


def test_without_matplotlib(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError\n")
    result = plotted(document(tmp_path / "b.json", RAN), "--out", tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == "plot: matplotlib is not installed: python3 -m pip install matplotlib\n"


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_bad_documents(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    result = plotted(path)
    assert result.returncode == 2 and result.stderr == f"plot: {path}: no result document\n"
    assert plotted("/absent.json").stderr == "plot: /absent.json: No such file or directory\n"
