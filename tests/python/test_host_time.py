"""tools/bench/host_time.py: every layer of every call is timed, and nothing is allocated on the device."""

import json
import sys
from pathlib import Path

import pytest
import torch
from runner import ROOT, program

sys.path.insert(0, str(ROOT / "tools"))
from bench import host_time  # noqa: E402


def test_table(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(host_time.os, "sched_setaffinity", lambda *_: None)  # the tests keep their cores
    monkeypatch.setattr(host_time.gc, "disable", lambda: None)
    library, out = program("tools/bench/libkvrope_host_time.so"), tmp_path / "host.json"
    options = ["--device", device, "--calls", "3", "--rounds", "2", "--json", str(out)]
    host_time.main(["--library", str(library), *options])
    document = json.loads(out.read_text())
    assert [result["case"] for result in document["results"]] == list(host_time.CASES)
    steps = host_time.CALLS + host_time.CPU_STEPS + (host_time.CUDA_STEPS if device == "cuda" else [])
    for result in document["results"]:
        assert list(result["layers"]) == [host_time.ADD, *steps]
        for layer in result["layers"].values():
            assert 0 < layer["fastest"] <= layer["microseconds"] and layer["of_add_"] > 0
        if device == "cuda":
            assert result["allocations"] == dict.fromkeys(host_time.CALLS, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("|") == len(host_time.CASES) + 2 and lines[2].startswith(f"| {host_time.ADD} |")


def test_unknown_step(device: str) -> None:
    torch.ops.load_library(str(program("tools/bench/libkvrope_host_time.so")))
    with pytest.raises(ValueError, match="no step of this name on this device: launhc"):
        torch.ops.kvrope_host_time.time_step("launhc", 1, **host_time.make_call(device))


@pytest.mark.parametrize("wrong", [["--calls", "0"], ["--calls", "1000"], ["--rounds", "0"]])
def test_bad_arguments(wrong: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        host_time.parse(["--library", "x.so", *wrong])
    assert stopped.value.code == 2 and "expected 1 to 500 calls" in capsys.readouterr().err
