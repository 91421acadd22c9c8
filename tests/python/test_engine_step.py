"""kvrope-engine-step as a program: what it prints and its exit codes."""

import re
import subprocess

import pytest
import torch
from runner import program


def engine_step(*arguments: object) -> subprocess.CompletedProcess:
    command = [str(argument) for argument in (program("kvrope-engine-step"), *arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_says_what_it_did(device: str) -> None:
    result = engine_step("--steps", 30, "--device", device, "--kv-cache-dtype", "fp8_e4m3")
    assert (result.returncode, result.stderr) == (0, "")
    first, *_, error, last = result.stdout.splitlines()
    assert int(re.match(r"steps +(\d+): ", first)[1]) >= 30
    assert re.fullmatch(r"error +\d\.\de-\d\d, tolerance 1e-05", error)
    assert last == "passed"
    assert ("replays" in result.stdout) == (device == "cuda")


def test_one_seed_is_one_run() -> None:
    runs = [engine_step("--steps", 30, "--device", "cpu", "--seed", seed).stdout for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("kind, argument", [("slot", "slot_mapping"), ("position", "pos")])
def test_planted_faults_cost_their_requests(device: str, kind: str, argument: str) -> None:
    result = engine_step("--steps", 30, "--device", device, "--inject", kind)
    assert (result.returncode, result.stderr) == (0, "")
    faults, text = re.search(r"^faults +(\d+), the first: (.*)$", result.stdout, re.M).groups()
    assert int(faults) > 0 and f" {faults} dropped" in result.stdout
    on_cpu, on_cuda = rf"{argument}\[\d+\] is -?\d+, expected", rf"{argument} gives -?\d+ for row \d+: "
    assert re.search(on_cuda if device == "cuda" else on_cpu, text)


def test_wrong_blocks_are_reported(device: str) -> None:
    result = engine_step("--steps", 30, "--device", device, "--inject", "block")
    assert result.returncode == 1
    place = r"^step \d+, request \d+, position \d+, layer \d: attention differs by "
    assert re.search(place, result.stdout, re.M)
    assert re.search(r"^failed: \d+ complaints$", result.stdout, re.M)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--inject", "nothing"], "--inject: nothing not in {slot,position,block}"),
        (["--steps", 0], "--steps: Value 0 not in range"),
        (["--blocks", 5], "kvrope-engine-step: the caches have too few blocks for the longest request"),
        (["--head-size", 7], "kvrope-engine-step: expected kv-heads that divide q-heads, an even head-size"),
    ],
)
def test_usage(arguments: list, message: str) -> None:
    result = engine_step(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_missing_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    result = engine_step("--device", "cuda")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("kvrope-engine-step: cuda: ")
