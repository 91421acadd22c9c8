"""The tables of README.md are those of the documents that they cite."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools/tables.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def result(name: str, num_tokens: int, **times: float) -> dict:
    return {
        "name": name,
        "num_tokens": num_tokens,
        "l2": "warm",
        "times": {key.replace("_", " "): {"microseconds": value} for key, value in times.items()},
    }


def page(folder: Path, kind: str, results: list, globs: str = "") -> Path:
    (folder / "r.json").write_text(json.dumps({"results": results}))
    path = folder / "page.md"
    path.write_text(f"before\n<!-- table: {kind} r.json {globs} -->\nold\n<!-- end of table -->\nafter\n")
    return path


def test_readme_shows_its_documents() -> None:
    done = run(ROOT / "README.md", "--check")
    assert done.returncode == 0, done.stderr
    assert "<!-- table: floors" in (ROOT / "README.md").read_text()


def test_floors(tmp_path: Path) -> None:
    path = page(
        tmp_path,
        "floors",
        [
            result("flash/decode/num_tokens=8", 8, kvrope=2, kvrope_without_PDL=3, copy=4, memcpy=1),
            result("left-out/num_tokens=8", 8, kvrope=2),
        ],
        "flash*",
    )
    assert run(path, "--check").returncode == 1
    assert run(path).returncode == 0
    assert run(path, "--check").returncode == 0
    assert path.read_text().splitlines()[2:-2] == [
        "| cache | T | L2 | kvrope | no PDL | copy | memcpy | chain |",
        "|---|---|---|---|---|---|---|---|",
        "| flash | 8 | warm | 2.00 | 3.00 | 0.50 | 2.00 |  |",
    ]


def test_peers(tmp_path: Path) -> None:
    path = page(
        tmp_path,
        "peers",
        [
            result("flash/num_tokens=8", 8, kvrope_without_PDL=3, sglang=1.5, kvrope=2, copy=4),
            result("split/num_tokens=1", 1, kvrope=1, triton=7),
        ],
    )
    assert run(path).returncode == 0
    assert path.read_text().splitlines()[2:-2] == [
        "| cache | T | L2 | kvrope | sglang | triton | kvrope, no PDL |",
        "|---|---|---|---|---|---|---|",
        "| flash | 8 | warm | 2.00 | 1.50 |  | 3.00 |",
        "| split | 1 | warm | 1.00 |  | 7.00 |  |",
    ]


def test_globs_may_name_the_l2_state(tmp_path: Path) -> None:
    cold = result("flash/num_tokens=8", 8, kvrope=5) | {"l2": "flushed"}
    path = page(tmp_path, "floors", [result("flash/num_tokens=8", 8, kvrope=2), cold], "split* flash*@flushed")
    assert run(path).returncode == 0
    assert [line for line in path.read_text().splitlines() if line.startswith("| flash")] == [
        "| flash | 8 | flushed | 5.00 |  |  |  |  |"
    ]


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    results = [result("flash/num_tokens=8", 8, kvrope=2)]
    for kind, globs, message in [
        ("pears", "", "kind: got pears, want one of floors, peers"),
        ("floors", "x*", "r.json: no measured case matches x*"),
    ]:
        done = run(page(tmp_path, kind, results, globs))
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    path = page(tmp_path, "floors", results)
    (tmp_path / "r.json").unlink()
    assert "r.json: No such file" in run(path).stderr
