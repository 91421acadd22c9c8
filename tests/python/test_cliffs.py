"""tools/cliffs.py finds the cliffs planted in small documents, and no others."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runner import ROOT, SHAPES

sys.path.insert(0, str(ROOT / "tools"))
import cliffs  # noqa: E402


def result(size: int, ours: float, floor: float, case: str = "flash/prefill", swept: str = "num_tokens") -> dict:
    times = {"kvrope": {"microseconds": ours}, "copy": {"microseconds": floor}}
    return {"name": f"{case}/{swept}={size}", "l2": "rotating", "disposition": "passed", "times": times}


# Launching is all that the first take, bytes all that the last do.
SMOOTH = [result(*point) for point in [(1, 1, 1.2), (64, 1.25, 1.3), (128, 1.6, 1.5), (256, 3, 2.9), (512, 6, 5.6)]]


def excess_of(a: tuple[float, float], b: tuple[float, float]) -> float:
    (step,) = cliffs.steps([result(1, *a), result(2, *b)])
    return step.excess


@pytest.mark.parametrize(
    "a, b, excess",
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (2, 2), 1),  # as the copy
        ((1, 1), (2, 1), 2),  # of its own
        ((1, 1), (3, 2), 1.5),
        ((1, 1), (2, 4), 0.5),  # half of the copy's
        ((3, 1), (2, 1), 1.5),  # down
        ((3, 3), (2, 2), 1),
        ((3, 2), (2, 3), 1.5),  # a floor that moves the other way excuses nothing
        ((2, 3), (3, 2), 1.5),
    ],
)
def test_excess_of_a_step(a: tuple[float, float], b: tuple[float, float], excess: float) -> None:
    assert excess_of(a, b) == pytest.approx(excess)


def test_neighbours() -> None:
    """By size, not as text or as measured, within one sweep in one L2 state."""
    others = [result(3, 50, 50, "split/prefill"), {**result(4, 70, 70), "l2": "warm"}, result(9, 9, 9, swept="x")]
    found = cliffs.steps([result(512, 3, 3), *others, result(8, 1, 1), result(64, 2, 2)])
    assert [(str(step.sweep), step.sizes, step.times) for step in found] == [
        ("flash/prefill over num_tokens, rotating", (8, 64), (1, 2)),
        ("flash/prefill over num_tokens, rotating", (64, 512), (2, 3)),
    ]


def test_floor_of_the_cpu() -> None:
    on_cpu = [result(1, 1, 1), result(2, 2, 2)]
    for measured in on_cpu:
        measured["times"]["memcpy"] = measured["times"].pop("copy")
    assert [step.excess for step in cliffs.steps(on_cpu)] == [1]


def checked(path: Path, results: list, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = path / "r.json"
    path.write_text(json.dumps({"results": results}))
    command = [sys.executable, ROOT / "tools" / "cliffs.py", path, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def test_no_cliff(tmp_path: Path) -> None:
    done = checked(tmp_path, SMOOTH)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "Largest step of each sweep:",
        "flash/prefill over num_tokens, rotating: 1 -> 64: 1.15 x (1.00 -> 1.25 us, floor 1.20 -> 1.30 us)",
        "4 steps, 0 cliffs, 0 cases not measured",
    ]


@pytest.mark.parametrize("factor, sizes", [(1.4, "128 -> 256"), (0.5, "64 -> 128"), (1.25, None), (0.8, None)])
def test_planted_cliff(tmp_path: Path, factor: float, sizes: "str | None") -> None:
    """From 128 or 256 on all take longer, or less; a smaller step is none."""
    start = 256 if factor > 1 else 128
    planted = json.loads(json.dumps(SMOOTH))
    for measured in planted:
        if int(measured["name"].rpartition("=")[2]) >= start:
            measured["times"]["kvrope"]["microseconds"] *= factor
    done = checked(tmp_path, planted)
    found = re.findall(r"^CLIFF flash/prefill over num_tokens, rotating: (\d+ -> \d+):", done.stdout, re.M)
    assert found == ([sizes] if sizes else [])
    assert done.returncode == len(found)
    assert checked(tmp_path, planted, "--limit", 3).returncode == 0


def test_cases_that_were_not_measured(tmp_path: Path) -> None:
    skipped = {"name": "flash/prefill/num_tokens=1024", "disposition": "skipped", "message": "no memory"}
    done = checked(tmp_path, [*SMOOTH, skipped])
    assert done.returncode == 1
    assert "NOT MEASURED flash/prefill/num_tokens=1024: no memory\n" in done.stdout


@pytest.mark.parametrize("results", [[], SMOOTH[:1], [{"name": "a", "disposition": "passed"}]])
def test_documents_without_neighbours(tmp_path: Path, results: list) -> None:
    done = checked(tmp_path, results)
    assert done.returncode == 2 and done.stderr == "cliffs: the documents hold no two sizes to compare\n"


def test_bad_document(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    done = checked(tmp_path, SMOOTH, tmp_path / "bad.json")
    assert (done.returncode, done.stderr) == (2, f"cliffs: {tmp_path}/bad.json: no result document\n")


# --- the shipped cases


def test_sizes_of_the_growth_plots() -> None:
    """All powers of two to 131072, and both sides of where the launch changes its shape (kernels/launch_plan.cpp)."""
    document = json.loads((SHAPES / "growth.json").read_text())
    sizes: dict[tuple[str, str], set] = {}
    for case in document["cases"]:
        assert "growth" in case["tags"] and len(set(case["tags"]) & {"warm", "rotating", "flushed"}) == 1
        for swept, values in case["sweep"].items():
            sizes.setdefault((case["id"], swept), set()).update(values)
            assert swept != "num_tokens" or ("large" in case["tags"]) == (min(values) > 64)
    source = (ROOT / "kernels" / "launch_plan.cpp").read_text()
    limits = [int(rows) for rows in re.findall(r"\bk(?:Fewest|Thin|Few|Many)Rows = (\d+)", source)]
    assert len(limits) == 4
    beside = {rows + step for rows in limits for step in (-1, 0, 1)}
    for layout in ("flash-bf16", "flash-fp8", "x-split-bf16", "x-split-fp8"):
        assert sizes[f"{layout}/prefill", "num_tokens"] == {2**i for i in range(18)} | beside
        assert sizes[f"{layout}/decode", "num_tokens"] >= {rows for rows in beside if rows <= 512}
    assert sizes["flash-bf16/prefill", "head_dim"] == set(range(32, 257, 16))


def test_filter(tmp_path: Path) -> None:
    """Cliffs of other cases do not count, and no case is none to compare."""
    document = tmp_path / "r.json"
    steep = [result(1, 1, 1, "split/prefill"), result(2, 9, 1, "split/prefill")]
    document.write_text(json.dumps({"results": [*SMOOTH, *steep]}))
    for glob, code in [("*", 1), ("flash*", 0), ("split*", 1), ("hnd*", 2)]:
        command = [sys.executable, ROOT / "tools" / "cliffs.py", document, "--filter", glob]
        assert subprocess.run(list(map(str, command)), capture_output=True, timeout=60).returncode == code, glob
