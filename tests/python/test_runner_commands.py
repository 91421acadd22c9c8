"""kvrope-regress run, list and schema on the command line: messages, exit codes, what is written where."""

import json
import os
import pty
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import jsonschema
import numpy
import pytest
from conftest import HAS_CUDA
from runner import ROOT, regress, runner
from runner_cases import MISMATCH, RAISES, REJECTED, TOO_LARGE, write_cases

GOOD = {"id": "good"}
QUICK = ROOT / "tests/shapes/quick.json"
SCHEMA = ROOT / "tests/shapes/case_file.schema.json"

BAD_FILES = {
    "truncated": ('{"schema_version": 1, "cases": [{"id"', "no valid JSON: "),
    "empty": ("", "no valid JSON: "),
    "no cases": ('{"schema_version": 1, "cases": []}', "/cases: must be a list of at least one case, got []"),
    "unknown key": (
        '{"schema_version": 1, "cases": [{"id": "a", "blocksize": 1}]}',
        "/cases/0/blocksize: unknown key",
    ),
    "fraction": (
        '{"schema_version": 1, "cases": [{"id": "a", "block_size": 16.5}]}',
        "/cases/0/block_size: must be a positive integer, got 16.5",
    ),
    "text": (
        '{"schema_version": 1, "cases": [{"id": "a", "block_size": "16"}]}',
        '/cases/0/block_size: must be a positive integer, got "16"',
    ),
    "duplicate": (
        '{"schema_version": 1, "cases": [{"id": "a"}, {"id": "a"}]}',
        '/cases/1/id: must be unique, but "a" is also in /cases/0',
    ),
    "dtype": (
        '{"schema_version": 1, "cases": [{"id": "a", "dtype": "fp64"}]}',
        '/cases/0/dtype: must be one of "fp16", "bf16", "fp32", got "fp64"',
    ),
    "version": ('{"schema_version": 2, "cases": [{"id": "a"}]}', "/schema_version: must be 1, got 2"),
    "control character": (
        '{"schema_version": 1, "cases": [{"id": "a\\u001b[2J"}, {"id": "a\\u001b[2J"}]}',
        '/cases/1/id: must be unique, but "a\\x1b[2J" is also in /cases/0',
    ),
}


def check_refused(result: subprocess.CompletedProcess, exit_code: int, message: str) -> None:
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith(f"kvrope-regress: {message}"), result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("command", ["run", "list"])
def test_bad_files(command, kind, tmp_path):
    text, message = BAD_FILES[kind]
    file = tmp_path / "cases.json"
    file.write_text(text)
    check_refused(regress(command, file), 2, f"{file}: {message}")


def test_absent_file_and_folder(tmp_path):
    check_refused(regress("run", tmp_path / "absent.json"), 2, f"{tmp_path}/absent.json: cannot be read")
    check_refused(regress("run", tmp_path), 2, f"{tmp_path}: cannot be read")


def test_names_are_unique_over_files(tmp_path):
    first, second = write_cases(tmp_path / "a.json", GOOD), write_cases(tmp_path / "b.json", GOOD)
    message = f'{second}: /cases/0/id: must be unique, but "good" is also in {first}'
    check_refused(regress("run", first, second), 2, message)


@pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device")
@pytest.mark.parametrize("command", [["run", QUICK], ["fuzz"]])
def test_absent_device(command):
    check_refused(regress(*command, "--device", "cuda"), 3, "cuda: ")


@pytest.mark.parametrize("option", ["--json", "--junit", "--dump"])
def test_outputs_that_cannot_be_written(option, tmp_path):
    (tmp_path / "file").write_text("")
    cases = write_cases(tmp_path / "cases.json", GOOD)
    check_refused(regress("run", cases, option, tmp_path / "file/out"), 2, f"{tmp_path}/file/out: cannot be ")


@pytest.mark.parametrize("command, option", [("run", "--json"), ("run", "--junit"), ("bench", "--json"), ("list", "--json")])
def test_an_output_that_is_an_input(command, option, tmp_path):
    cases = write_cases(tmp_path / "cases.json", GOOD)
    text = cases.read_text()
    check_refused(regress(command, cases, option, tmp_path / "." / "cases.json"), 2, f"{tmp_path}/cases.json: is read by")
    assert cases.read_text() == text


@pytest.mark.parametrize("option", ["--json", "--junit", "--dump", "--filter", "--tag"])
def test_options_that_are_empty(option, tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", GOOD), option, "")
    assert result.returncode == 2 and f"{option}: must not be empty" in result.stderr and result.stdout == ""


def test_a_file_that_is_given_twice(tmp_path):
    cases = write_cases(tmp_path / "cases.json", GOOD)
    check_refused(regress("run", cases, cases), 2, f"{cases}: is given twice")


def test_a_command_that_does_not_exist():
    check_refused(regress("walk", "x.json"), 2, "no such command: walk")


def test_a_full_disk(tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", GOOD), "--json", "/dev/full")
    assert result.returncode == 2
    assert result.stderr == "kvrope-regress: /dev/full: cannot be written\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["walk"], ["run"], ["run", "x.json", "--device", "tpu"], ["run", "x.json", "--seed", "-1"],
     ["fuzz", "--filter", "x"], ["fuzz", "--cases", "0"], ["fuzz", "--cases", "1", "--minutes", "1"]],
)  # fmt: skip
def test_usage(arguments):
    result = regress(*arguments)
    assert result.returncode == 2
    assert result.stderr and result.stdout == ""


def test_selection(tmp_path):
    cases = write_cases(
        tmp_path / "cases.json", {"id": "a", "tags": ["x", "y"]}, {"id": "b/c", "tags": ["x"]}, {"id": "d"}
    )

    def names(*arguments) -> list[str]:
        result = regress("list", cases, *arguments, "--json", "-")
        assert result.returncode == 0, result.stderr
        return [case["name"] for case in json.loads(result.stdout)["cases"]]

    assert names() == ["a", "b/c", "d"]
    assert names("--tag", "x and not y") == ["b/c"]
    assert names("--tag", "y,x") == ["a", "b/c"]
    assert names("--filter", "b*") == ["b/c"]
    check_refused(regress("run", cases, "--filter", "z"), 2, "0 cases matched")
    check_refused(regress("run", cases, "--tag", "x and"), 2, '--tag: expected a tag in "x and"')


def test_a_call_that_raises_does_not_stop_the_later_ones(tmp_path):
    cases = write_cases(tmp_path / "cases.json", RAISES, GOOD, REJECTED, TOO_LARGE, MISMATCH)
    result = regress("run", cases, "--json", tmp_path / "out.json", "--device", "cpu")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("error raises: fused_qk_rope_reshape_and_cache: k: ")
    assert "passed good" in lines and "rejected-as-expected rejected" in lines
    assert lines[-1] == "2 passed, 2 failed, 1 skipped"
    document = json.loads((tmp_path / "out.json").read_text())
    counts = document["meta"]["counts"]
    assert counts == {"passed": 1, "failed": 1, "rejected-as-expected": 1, "skipped": 1, "error": 1}
    assert document["meta"]["cases"] == len(document["results"]) == 5
    assert [case["disposition"] for case in document["results"]] == [
        "error", "passed", "rejected-as-expected", "skipped", "failed",
    ]  # fmt: skip
    assert "GB of host memory" in document["results"][3]["message"]


def test_fail_fast_tells_what_did_not_run(tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", GOOD, RAISES, MISMATCH), "--fail-fast")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-2:] == ["2 of 3 cases ran", "1 passed, 1 failed, 0 skipped"]


def test_nothing_but_skipped_cases_is_no_success(tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", TOO_LARGE))
    assert result.returncode == 2
    assert result.stdout.splitlines()[-2:] == [
        "0 cases ran: all of them were skipped",
        "0 passed, 0 failed, 1 skipped",
    ]
    assert regress("run", write_cases(tmp_path / "cases.json", TOO_LARGE, GOOD)).returncode == 0


def test_the_repeat_command_repeats(tmp_path):
    name = "it's [a] *\x1b\\ case"
    cases = write_cases(tmp_path / "my cases.json", GOOD, MISMATCH | {"id": name})
    result = regress("run", cases, "--device", "cpu", "--seed", "5")
    command = re.search(r"^  repeat: (.*)$", result.stdout, re.MULTILINE).group(1)
    repeated = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert repeated.returncode == 1
    assert repeated.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert repeated.stdout.splitlines()[:-1] == result.stdout.splitlines()[1:-1]


def test_names_go_to_the_terminal_without_control_characters(tmp_path):
    coloured = [case | {"id": f"\x1b[31m\n{case['id']}"} for case in (GOOD, RAISES)]
    cases = write_cases(tmp_path / "cases.json", *coloured)
    for arguments in (["run"], ["list"]):
        result = regress(*arguments, cases)
        assert "\x1b" not in result.stdout + result.stderr
        assert "\\x1b[31m\\x0agood" in result.stdout


def test_json_on_standard_output_is_nothing_but_json(tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", GOOD, MISMATCH), "--json", "-")
    assert result.returncode == 1
    assert [case["name"] for case in json.loads(result.stdout)["results"]] == ["good", "mismatch"]
    assert result.stderr.startswith("failed mismatch") and "passed good" not in result.stderr
    both = regress("run", write_cases(tmp_path / "cases.json", GOOD), "--json", "-", "--junit", "-")
    check_refused(both, 2, "--json and --junit cannot both be standard output")


def test_junit(tmp_path):
    odd = GOOD | {"id": '<a> & "b"\x07'}
    cases = write_cases(tmp_path / "cases.json", odd, RAISES, MISMATCH, REJECTED, TOO_LARGE)
    assert regress("run", cases, "--junit", tmp_path / "out.xml").returncode == 1
    (suite,) = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    found = {case.get("name"): [child.tag for child in case] for case in suite}
    assert found == {
        '<a> & "b"\\x07': [],
        "raises": ["error"],
        "mismatch": ["failure"],
        "rejected": [],
        "too-large": ["skipped"],
    }
    assert all(case.get("classname") == str(cases) for case in suite)
    assert "want" in suite[2][0].text


def test_dump(tmp_path):
    case = MISMATCH | {"id": "../a b", "num_tokens": 3, "v_head_dim": 16, "kv_cache_dtype": "fp8_e4m3"}
    case["scales"] = {"k": 0.5}
    case["mrope"] = {"section": [8, 12, 12]}
    cases = write_cases(tmp_path / "cases.json", GOOD, case)
    assert regress("run", cases, "--dump", tmp_path / "dump" / "here").returncode == 1
    (folder,) = (tmp_path / "dump" / "here").iterdir()
    assert folder.name == "2_.._a_b"
    index = json.loads((folder / "index.json").read_text())
    assert index["name"] == "../a b" and index["mismatches"] > 0 and "--filter" in index["repeat"]
    tensors = {}
    for entry in index["tensors"]:
        tensors[entry["file"]] = numpy.load(folder / entry["file"])
        assert list(tensors[entry["file"]].shape) == entry["shape"]
    assert {file.name for file in folder.iterdir()} == {"index.json", *tensors}
    want, got = tensors["q_out_want.npy"], tensors["q_out_got.npy"]
    assert want.shape == got.shape == (3, 8, 64) and want.dtype == numpy.float64
    numpy.testing.assert_allclose(got, want, rtol=2**-8)
    assert not numpy.array_equal(got, want)
    assert tensors["slots.npy"].tolist() == [0, 1, 2]
    assert tensors["pos.npy"].shape == (3, 3) and tensors["pos.npy"][0].tolist() == [3, 4, 5]
    numpy.testing.assert_allclose(tensors["key_cache_want.npy"], 2 * tensors["k_out_want.npy"])
    numpy.testing.assert_array_equal(tensors["value_cache_want.npy"], tensors["v.npy"])
    assert tensors["memory_key_cache_before.npy"].dtype == numpy.uint8


# --- Interrupted runs

MANY = {"id": "many", "num_tokens": 64, "sweep": {"seed": list(range(3000))}}


@pytest.mark.parametrize("number, exit_code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_results_so_far(number, exit_code, tmp_path):
    cases = write_cases(tmp_path / "cases.json", MANY)
    out, junit = tmp_path / "out.json", tmp_path / "out.xml"
    command = [runner(), "run", cases, "--json", out, "--junit", junit, "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("passed many/seed=0")
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == exit_code
    document = json.loads(out.read_text())
    ran = len(document["results"])
    assert 0 < ran < 3000 and document["meta"]["interrupted"] and document["meta"]["cases"] == 3000
    assert rest.splitlines()[-3:] == [
        "interrupted",
        f"{ran} of 3000 cases ran",
        f"{ran} passed, 0 failed, 0 skipped",
    ]
    assert ElementTree.parse(junit).getroot().get("tests") == str(ran)


# --- Terminals


def on_a_terminal(*arguments, **environment) -> str:
    """What the program writes to a terminal that is its standard output."""
    side, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | environment
    command = [str(part) for part in (runner(), *arguments)]
    process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    written = b""
    while True:
        try:
            part = os.read(side, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        written += part
    os.close(side)
    process.communicate(timeout=60)
    return written.decode()


def test_a_terminal_sees_progress_and_colour(tmp_path):
    cases = write_cases(tmp_path / "cases.json", MANY | {"num_tokens": 32, "sweep": {"seed": list(range(400))}}, RAISES)
    shown = on_a_terminal("run", cases, "--device", "cpu")
    assert re.search(r"\r\x1b\[K\[\d+/401\] \d+/s, \d+ s left many/seed=\d+", shown)
    assert "\x1b[31merror\x1b[0m raises" in shown
    assert "passed many" not in shown
    assert shown.endswith("400 passed, 1 failed, 0 skipped\r\n")
    plain = on_a_terminal("run", cases, "--filter", "raises", NO_COLOR="1")
    assert "\x1b[31m" not in plain and "\nerror raises" in "\n" + plain.replace("\r\x1b[K", "\n")
    assert "\x1b" not in on_a_terminal("run", cases, "--filter", "*=1", "--json", "-")


def test_elsewhere_there_are_plain_lines(tmp_path):
    result = regress("run", write_cases(tmp_path / "cases.json", GOOD, {"id": "other"}))
    assert result.stdout.splitlines() == ["passed good", "passed other", "2 passed, 0 failed, 0 skipped"]
    assert result.stderr == ""


# --- list and schema


def test_list_counts_bytes_and_flops(tmp_path):
    case = {"id": "a", "num_tokens": 3, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6}
    case |= {"rotary_dim": 4, "dtype": "fp16", "scales": {"k": 2}, "slots": {"dtype": "int32"}}
    cases = write_cases(tmp_path / "cases.json", case, TOO_LARGE)
    rows = 3 * (4 * 8 + 2 * 8) * 2  # q and k, read once and written once
    values = 3 * 2 * 6 * 2
    indices = 3 * (8 + 4) + 3 * 4 * 4  # positions, slots, three rows of the table
    expected = 2 * rows + values + 3 * 2 * (8 + 6) * 2 + indices
    flops = 3 * (4 + 2) * 2 * 6 + 3 * 2 * 8
    (listed, large) = json.loads(regress("list", cases, "--json", "-").stdout)["cases"]
    assert (listed["name"], listed["bytes"], listed["flops"]) == ("a", expected, flops)
    assert large["bytes"] is None
    result = regress("list", cases, "--json", tmp_path / "out.json")
    assert re.search(rf"^a +{expected} +{flops}$", result.stdout, re.MULTILINE)
    assert json.loads((tmp_path / "out.json").read_text())["cases"][0] == listed


def test_schema_is_the_shipped_one(tmp_path):
    result = regress("schema", cwd=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout == SCHEMA.read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(result.stdout))


# --- The quick cases


def test_quick_cases_are_quick():
    start = time.monotonic()
    result = regress("run", QUICK, "--device", "cpu")
    assert result.returncode == 0, result.stdout[-2000:]
    assert time.monotonic() - start < 20
