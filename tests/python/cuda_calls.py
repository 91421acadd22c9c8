"""Captured calls, calls worth trying on a GPU, and scripts that need a process of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable

import kvrope
import pytest
import torch

from cases import Call


def captured(call: Call) -> Callable[..., Any]:
    """The call as a CUDA graph: an operation for verify(), which replays it."""
    warm_up = call.copy()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        warm_up.run()
    stream.synchronize()
    if kvrope.last_fault("cuda") is not None:
        with pytest.raises(IndexError):
            kvrope.check("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call.run()

    def replay(**arguments: Any) -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return results

    return replay


def copy_into(call: Call, **values: Any) -> None:
    """New contents in the same memory, as a serving engine updates its static buffers."""
    for name, value in values.items():
        tensor = call.arguments[name]
        tensor.copy_(torch.as_tensor(value, dtype=tensor.dtype).to(tensor.device))


CALLS = {
    "outputs omitted": dict(output_zeros=True),
    "outputs given": dict(q_out="contiguous", k_out="contiguous", zeros_out="contiguous"),
    "in place": dict(q_out="in_place", k_out="in_place", strides="fused_qkv"),
    "fp8 with scales": dict(cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=[2.0, 0.1]),
    "scales ignored": dict(k_scale=0.5, v_scale=2.0, apply_scale=False),
    "window and offsets": dict(swa=list(range(127, -1, -1)), offs=[1, 2, 3, 4, 5], pos=[0, 9, 8, 7, 6]),
    "three axes": dict(mrope_section=(7, 12, 13), mrope_interleaved=True, norm="qk"),
    "fp8 queries": dict(q_out_dtype=torch.float8_e4m3fn, q_scale=[0.3, 7.0], mrope_section=(7, 12, 13)),
    "shuffled": dict(layout="shuffled", num_kv_rows=7, num_slots=6),
}


FAULTS = {
    "slot": dict(slots=[3, 17, 128, 0, 64]),
    "position": dict(pos=[0, 1, 256, 2, 3]),
    "window": dict(slots=[0, 1, 2, 3, 4], swa=[5, 6, 128, 7, 8]),
    "axis": dict(mrope_section=(7, 12, 13), pos=[[0, 1, 2, 3, 4], [0, 1, 2, 256, 4], [0, 1, 2, 300, 4]],
                 q_out_dtype=torch.float8_e5m2),
}  # fmt: skip


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess:
    """A fresh process, since the environment is read once, with the helpers of these tests on its path."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    prologue = "import torch, kvrope\nfrom cases import Case, build, verify\n"
    return subprocess.run(
        [sys.executable, "-c", prologue + textwrap.dedent(script)], capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
    )  # fmt: skip
