"""`kvrope-regress bench` and `compare` as commands: results, verdicts, messages and exit codes."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from runner import SHAPES, regress

ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def bench(path: Path, *arguments: object):
    rounds = () if "--rounds" in arguments else ("--rounds", 10)
    return regress("bench", path, "--device", "cpu", *rounds, *arguments, **ONE_THREAD)


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "cases": [
                    {"id": "one", "num_tokens": 1, "tags": ["warm", "flushed"]},
                    {"id": "many", "num_tokens": 64, "tags": ["rotating"], "layout": "x_split"},
                    {"id": "refused", "num_tokens": 1, "q_heads": 3, "expect": {"error": "heads"}},
                ],
            }
        )
    )
    return path


def test_results_and_last_line(case_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = bench(case_file, "--json", out)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    assert "one, warm: " in result.stdout and " GB/s  memcpy " in result.stdout and "  host " in result.stdout
    document = json.loads(out.read_text())
    assert document["device"]["type"] == "cpu" and document["meta"]["arguments"][1] == "bench"
    results = {(r["name"], r.get("l2")): r for r in document["results"]}
    assert set(results) == {("one", "warm"), ("one", "flushed"), ("many", "rotating"), ("refused", None)}
    many = results["many", "rotating"]
    assert (
        many["num_tokens"] == 64 and many["checked_against"] == "oracle" and many["host_microseconds"] is None
    )
    ours, memcpy = many["times"]["kvrope"], many["times"]["memcpy"]
    assert len(ours["rounds"]) == 10 and ours["microseconds"] > 0 and ours["bytes"] == many["bytes"]["all"]
    assert many["ratios"]["memcpy"] == pytest.approx(ours["microseconds"] / memcpy["microseconds"], rel=0.01)
    assert results["one", "warm"]["sets"] == 1 and results["one", "flushed"]["sets"] == 20
    assert results["refused", None]["disposition"] == "skipped"


def test_json_on_standard_output_is_nothing_else(case_file: Path) -> None:
    result = bench(case_file, "--json", "-", "--filter", "one", "--l2", "warm")
    assert [r["l2"] for r in json.loads(result.stdout)["results"]] == ["warm"]
    assert "1 passed, 0 failed, 0 skipped" in result.stderr


def test_planted_slowdown_is_slow(case_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    chosen = (
        "--filter",
        "many",
        "--l2",
        "warm",
        "--rounds",
        60,
    )  # other programs disturb many of a few rounds
    assert bench(case_file, *chosen, "--json", out).returncode == 0
    slow = bench(case_file, *chosen, "--baseline", out, "--plant-slowdown", 4)
    assert slow.returncode == 1, slow.stdout
    assert "SLOW          many, warm, kvrope: " in slow.stdout and "1 SLOW, 0 FAST" in slow.stdout


def test_wrong_results_are_failed_and_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    case = {"id": "exact", "num_tokens": 4, "tolerance": {"ulps": 0, "relative": 0}}
    path.write_text(json.dumps({"schema_version": 1, "cases": [case]}))
    result = bench(path)
    assert result.returncode == 1
    assert "failed exact: " in result.stdout and " us " not in result.stdout
    assert result.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--baseline", "absent.json"], 2, "absent.json: cannot be read"),
        (["--json", "/absent/out.json"], 2, "/absent/out.json: cannot be written"),
        (["--l2", "cold"], 2, "cold"),
        (["--rounds", "1"], 2, "--rounds"),
        (["--filter", "nothing"], 2, "0 cases matched"),
    ],
)
def test_usage_errors(case_file: Path, arguments: list, code: int, message: str) -> None:
    result = regress("bench", case_file, "--device", "cpu", *arguments, **ONE_THREAD)
    assert result.returncode == code and message in result.stderr, result.stderr
    assert " us " not in result.stdout  # nothing was measured


def test_missing_device(case_file: Path) -> None:
    result = regress("bench", case_file, "--device", "cuda", **ONE_THREAD)
    assert result.returncode == 3 and "cuda: " in result.stderr


# --- compare


def measured(microseconds: float, disposition: str = "passed") -> dict:
    times = {name: {"rounds": [value] * 30} for name, value in (("kvrope", microseconds), ("copy", 9.0))}
    return {"name": "a", "l2": "warm", "disposition": disposition, "message": "", "times": times}


def compare(tmp_path: Path, before: object, now: object, *arguments: object):
    for name, document in (("old.json", before), ("new.json", now)):
        text = document if isinstance(document, str) else json.dumps({"results": document})
        (tmp_path / name).write_text(text)
    return regress("compare", tmp_path / "old.json", tmp_path / "new.json", *arguments)


@pytest.mark.parametrize(
    "now, word, code", [(10.0, "SAME", 0), (11.5, "SLOW", 1), (8.0, "FAST", 0), (10.45, "SAME", 0)]
)
def test_verdicts(tmp_path: Path, now: float, word: str, code: int) -> None:
    result = compare(tmp_path, [measured(10.0)], [measured(now)])
    assert result.returncode == code and result.stdout.startswith(
        f"{word:13} a, warm, kvrope: 10.00 -> {now:.2f} us"
    )


def test_threshold(tmp_path: Path) -> None:
    assert compare(tmp_path, [measured(10.0)], [measured(11.5)], "--threshold", 0.3).returncode == 0


def test_newly_failing_case(tmp_path: Path) -> None:
    ran = {"name": "a", "disposition": "passed", "message": ""}
    failed = {**ran, "disposition": "failed", "message": "7 mismatches"}
    result = compare(tmp_path, [ran], [failed])
    assert result.returncode == 1 and "NEWLY FAILING a: 7 mismatches" in result.stdout
    assert compare(tmp_path, [failed], [failed]).returncode == 0
    assert compare(tmp_path, [failed], [ran]).returncode == 0


def test_cases_that_are_missing_are_regressions(tmp_path: Path) -> None:
    ran, other = ({"name": name, "disposition": "passed", "message": ""} for name in "ab")
    gone = compare(tmp_path, [ran, other], [ran])
    assert gone.returncode == 1 and "GONE          b" in gone.stdout and ", 1 GONE, 0 NEW" in gone.stdout
    skipped = compare(tmp_path, [ran], [{**ran, "disposition": "skipped", "message": "no memory"}])
    assert skipped.returncode == 1 and "SKIPPED       a: no memory" in skipped.stdout


@pytest.mark.parametrize("now", [[], [{"name": "b", "disposition": "passed", "message": ""}]])
def test_documents_without_a_common_case(tmp_path: Path, now: list) -> None:
    result = compare(tmp_path, [{"name": "a", "disposition": "passed", "message": ""}], now)
    assert result.returncode == 2 and "no case of the present results is among the earlier" in result.stderr


def test_baseline_without_a_common_case(tmp_path: Path, case_file: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps({"results": [measured(10.0)]}))
    command = ("bench", case_file, "--device", "cpu", "--rounds", 10, "--baseline", tmp_path / "old.json")
    result = regress(*command, **ONE_THREAD)
    assert result.returncode == 2 and "no case of the present results is among the earlier" in result.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no valid JSON"),
        ('{"results": [', "no valid JSON"),
        ("[]", "no result document"),
        ("{}", "no result document"),
        ('{"results": [{"name": 3}]}', "no result document"),
        (
            '{"results": [{"name": "a", "disposition": "passed", "times": {"kvrope": {"rounds": []}}}]}',
            "no rounds",
        ),
    ],
)
def test_bad_documents(tmp_path: Path, text: str, message: str) -> None:
    result = compare(tmp_path, [], text)
    assert (
        result.returncode == 2 and "new.json: " in result.stderr and message in result.stderr
    ), result.stderr


def test_results_of_run_can_be_compared(tmp_path: Path, case_file: Path) -> None:
    out = tmp_path / "run.json"
    assert regress("run", case_file, "--device", "cpu", "--json", out).returncode == 0
    assert regress("compare", out, out).returncode == 0
    document = json.loads(out.read_text())
    worse = copy.deepcopy(document)
    worse["results"][0]["disposition"] = "error"
    result = compare(tmp_path, json.dumps(document), json.dumps(worse))
    assert result.returncode == 1 and "NEWLY FAILING one" in result.stdout


# --- the shipped cases


def test_bench_cases_follow_the_schema() -> None:
    schema = json.loads((SHAPES / "case_file.schema.json").read_text())
    jsonschema.validate(
        json.loads((SHAPES / "bench.json").read_text()), schema, jsonschema.Draft202012Validator
    )


def test_on_cuda(tmp_path: Path, cuda: str) -> None:
    path, out = tmp_path / "cases.json", tmp_path / "out.json"
    case = {
        "id": "one",
        "q_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "tags": ["warm", "flushed", "rotating"],
        "sweep": {"num_tokens": [1, 64, 2048]},
    }
    path.write_text(json.dumps({"schema_version": 1, "cases": [case]}))
    result = regress("bench", path, "--device", cuda, "--rounds", 10, "--pdl", "both", "--json", out)
    assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads(out.read_text())["results"]
    assert len(results) == 9
    for measured_case in results:
        names = {"kvrope", "kvrope without PDL", "copy", "memcpy"} | (
            {"chain"} if measured_case["num_tokens"] < 2048 else set()
        )
        assert set(measured_case["times"]) == names
        assert all(0 < value["microseconds"] < 10000 for value in measured_case["times"].values())
        assert measured_case["checked_against"] == (
            "CPU kernel" if measured_case["num_tokens"] == 2048 else "oracle"
        )
    assert results[0]["host_microseconds"] > 0
