"""kvrope-regress fuzz on the command line."""

import json
import re
import signal
import subprocess
import time

import jsonschema
import psutil
import pytest
from runner import regress, runner


def counts_of(result: subprocess.CompletedProcess) -> str:
    return re.sub(r"cases in [^:]*", "cases", result.stdout)


def test_the_seed_decides():
    first, second = (regress("fuzz", "--cases", 200, "--seed", 5, "--device", "cpu") for _ in range(2))
    assert first.returncode == 0, first.stdout
    assert counts_of(first) == counts_of(second)
    assert counts_of(first).splitlines()[-1] == "200 passed, 0 failed, 0 skipped"
    summary = r"^seed 5: 200 cases: \d+ passed, \d+ rejected as expected$"
    assert re.search(summary, counts_of(first), re.MULTILINE)


def test_results_as_json():
    result = regress("fuzz", "--cases", 50, "--json", "-", "--device", "cpu")
    meta = json.loads(result.stdout)["meta"]
    assert meta["cases"] == sum(meta["counts"].values()) == 50
    assert meta["counts"]["rejected-as-expected"] > 5 and meta["seed"] == 0 and not meta["interrupted"]
    assert result.stderr.splitlines()[-1] == "50 passed, 0 failed, 0 skipped"


def test_cases_fit_the_schema_and_run_alike_from_a_file(tmp_path):
    printed = regress("fuzz", "--cases", 300, "--seed", 8, "--first", 1000, "--print")
    assert printed.returncode == 0
    jsonschema.validate(json.loads(printed.stdout), json.loads(regress("schema").stdout))
    (tmp_path / "cases.json").write_text(printed.stdout)
    result = regress("run", tmp_path / "cases.json", "--device", "cpu")
    assert result.returncode == 0, result.stdout[-2000:]
    assert result.stdout.splitlines()[-1] == "300 passed, 0 failed, 0 skipped"


SUBNORMALS_OF_A_NORM = {  # each of a norm's two roundings may cost half of the smallest subnormal
    "id": "subnormals-of-a-norm", "head_dim": 28, "rotary_dim": 10, "dtype": "fp32", "norm": {},
    "positions": {"offsets": {"values": [0, 0, 0, 0, 0, 0, -8, 0]},
                  "requests": [{"length": 4}, {}, {}, {"start": 65, "length": 2}]},
    "inputs": {"values": "extremes"}, "seed": 921783,
}  # fmt: skip


def test_what_was_found_once(tmp_path):
    (tmp_path / "cases.json").write_text(json.dumps({"schema_version": 1, "cases": [SUBNORMALS_OF_A_NORM]}))
    result = regress("run", tmp_path / "cases.json", "--device", "cpu")
    assert result.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped", result.stdout


def start_fuzz(*arguments) -> subprocess.Popen:
    command = [str(part) for part in (runner(), "fuzz", "--device", "cpu", *arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    for _ in range(200):
        children = psutil.Process(process.pid).children()
        if children:
            return children
        time.sleep(0.05)
    pytest.fail("no worker has started")


def test_a_worker_that_dies_is_a_failed_case_and_no_more():
    process = start_fuzz("--cases", 3000)
    time.sleep(1)  # torch takes a moment to load, and then the first cases run
    workers_of(process)[0].kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    error = r"^error fuzz-0-\d+: the process that ran the case was ended by signal 9 \(Killed\)$"
    assert re.search(error, output, re.M)
    assert output.splitlines()[-1] == "2999 passed, 1 failed, 0 skipped"
    # The case is a whole file in one command; it is no fault of the case, so that it passes now.
    command = re.search(r"^  repeat: (.*)$", output, re.M).group(1)
    repeated = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_an_interrupt_leaves_the_results_so_far(tmp_path):
    process = start_fuzz("--minutes", 5, "--json", tmp_path / "out.json")
    workers_of(process)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    meta = json.loads((tmp_path / "out.json").read_text())["meta"]
    assert meta["interrupted"] and meta["cases"] == sum(meta["counts"].values()) > 0
    assert "interrupted" in output.splitlines()
    assert output.splitlines()[-1] == f"{meta['cases']} passed, 0 failed, 0 skipped"


def test_minutes_end_the_run():
    start = time.monotonic()
    result = regress("fuzz", "--minutes", 0.05, "--device", "cpu")
    assert result.returncode == 0
    assert 3 <= time.monotonic() - start < 30


def test_workers_end_with_the_program():
    process = start_fuzz("--minutes", 5)
    workers = workers_of(process)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
