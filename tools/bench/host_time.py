#!/usr/bin/env python3
"""Where the host's time goes in one eager call of one row, with outputs given: a table of its layers and steps.

Every layer is called in batches, in a fresh random order of all layers in every round. The device is waited
for before each batch, so that the stream's queue (about a thousand launches) is empty at its start and never
full: what is timed is the host. The unit beside microseconds is torch.ops.aten.add_.Tensor on one element in the
same round: hosts change their speed from one second to the next. On a CPU the steps are the same up to the
launch; the calls hold its kernel.

    tools/bench/host_time.py --library build/tools/bench/libkvrope_host_time.so --json host_time.json
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

import torch
from torch import Tensor

import kvrope

QH, KH, D, BLOCK_SIZE, BLOCKS, POSITIONS = 32, 8, 128, 16, 512, 8192
CASES = {
    "flash bf16": {},
    "in place": {"in_place": True},
    "flash fp8, scales": {"cache": torch.float8_e4m3fn},
    "x-split bf16": {"flash": False},
    "window": {"window": True},
}
ADD = "torch.ops.aten.add_.Tensor"
CALLS = ["Python call", "torch.ops call", "C++ operator call", "C++ call"]
CHECKS = ["check_arguments", "check_no_overlap"]
CPU_STEPS = ["arguments copied", *CHECKS, "make_params", "plan_launch", "make_compact"]
CUDA_STEPS = ["guard, stream, fault record", "launch", "launch without PDL", "launch of a copy of 16 bytes"]
NOTES = {
    "launch": "what callers of kvrope::kernels pay: plan_launch, make_compact and CUDA's own launch",
    "launch without PDL": "the same with KVROPE_PDL=0",
    "launch of a copy of 16 bytes": "the least that a launch costs: three arguments, no attribute",
}


def make_call(
    device: str,
    flash: bool = True,
    cache: torch.dtype = torch.bfloat16,
    in_place: bool = False,
    window: bool = False,
) -> Dict[str, object]:
    def rows(heads: int) -> Tensor:
        return torch.randn(1, heads, D, dtype=torch.bfloat16, device=device)

    x = 16 // cache.itemsize
    shapes = [(BLOCKS, BLOCK_SIZE, KH, D)] * 2
    if not flash:
        shapes = [(BLOCKS, KH, D // x, BLOCK_SIZE, x), (BLOCKS, KH, D, BLOCK_SIZE)]
    q, k = rows(QH), rows(KH)
    key_cache, value_cache = (torch.zeros(shape, dtype=cache, device=device) for shape in shapes)
    scale = torch.ones((), device=device) if cache != torch.bfloat16 else None
    return {
        "q": q, "k": k, "v": rows(KH), "key_cache": key_cache, "value_cache": value_cache,
        "slot_mapping": torch.tensor([37], device=device), "pos": torch.tensor([11], device=device),
        "cos_sin": torch.randn(POSITIONS, D, device=device), "k_scale": scale, "v_scale": scale,
        "flash_layout": flash, "q_out": q if in_place else rows(QH), "k_out": k if in_place else rows(KH),
        "swa_slot_mapping": torch.arange(BLOCKS * BLOCK_SIZE, device=device) if window else None,
    }  # fmt: skip


INPUTS = "q k v key_cache value_cache slot_mapping pos cos_sin k_scale v_scale".split()


def python_call(c: Dict[str, object]) -> Callable[[], object]:
    """As engines write it: the inputs in order, the rest by name."""
    operation = kvrope.fused_qk_rope_reshape_and_cache
    inputs = [c[name] for name in INPUTS]
    flash_layout, q_out, k_out, window = (c[name] for name in ("flash_layout", "q_out", "k_out", "swa_slot_mapping"))
    return lambda: operation(
        *inputs, is_neox=True, flash_layout=flash_layout, q_out=q_out, k_out=k_out, output_zeros=False,
        swa_slot_mapping=window,
    )  # fmt: skip


def torch_call(c: Dict[str, object]) -> Callable[[], object]:
    operator = torch.ops.kvrope.fused_qk_rope_reshape_and_cache.default
    arguments = [c[name] for name in INPUTS] + [True, c["flash_layout"], True, None, c["q_out"], c["k_out"]]
    arguments += [None, c["swa_slot_mapping"]]
    return lambda: operator(*arguments)


def timed(run: Callable[[], object], calls: int) -> float:
    run()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) * 1e6 / calls


def layers_of(call: Dict[str, object], device: str) -> Dict[str, Callable[[int], float]]:
    """Each takes a number of calls and returns the microseconds of one."""
    one = torch.zeros(1, device=device)
    add = torch.ops.aten.add_.Tensor
    from_python = {
        ADD: lambda: add(one, one),
        "Python call": python_call(call),
        "torch.ops call": torch_call(call),
    }
    layers = {name: lambda calls, run=run: timed(run, calls) for name, run in from_python.items()}
    time_step = torch.ops.kvrope_host_time.time_step.default
    names = CALLS[2:] + CPU_STEPS + (CUDA_STEPS if device == "cuda" else [])
    layers |= {name: lambda calls, name=name: time_step(name, calls, **call) for name in names}
    return layers


def measure(
    layers: Dict[str, Callable[[int], float]], rounds: int, calls: int, wait: Callable[[], None]
) -> Dict[str, List[float]]:
    times: Dict[str, List[float]] = {name: [] for name in layers}
    for number in range(-3, rounds):
        for name in random.sample(list(layers), len(layers)):
            wait()
            microseconds = layers[name](calls)
            if number >= 0:
                times[name].append(microseconds)
    wait()
    return times


def allocations(layers: Dict[str, Callable[[int], float]], calls: int) -> Dict[str, int]:
    """Blocks that torch's allocator of the device hands out during so many calls of each kind."""

    def handed_out() -> int:
        return torch.cuda.memory_stats().get("allocation.all.allocated", 0)

    counted = {}
    for name in CALLS:
        layers[name](calls)
        before = handed_out()
        layers[name](calls)
        counted[name] = handed_out() - before
    return counted


def summary(times: Dict[str, List[float]]) -> Dict[str, Dict[str, float]]:
    ratios = {name: [t / add for t, add in zip(ts, times[ADD])] for name, ts in times.items()}
    return {
        name: {
            "microseconds": round(statistics.median(ts), 3),
            "fastest": round(min(ts), 3),
            "of_add_": round(statistics.median(ratios[name]), 3),
        }
        for name, ts in times.items()
    }


def table(results: List[dict]) -> str:
    """Microseconds and, of whole calls, the multiple of add_ in the same round."""
    names = list(results[0]["layers"])
    lines = ["| us a call (times add_) | " + " | ".join(result["case"] for result in results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for name in names:
        cells = []
        for result in results:
            layer = result["layers"][name]
            times_add = f" ({layer['of_add_']:.2f})" if name in CALLS else ""
            cells.append(f"{layer['microseconds']:.2f}{times_add}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def document(options: argparse.Namespace, results: List[dict]) -> dict:
    return {
        "meta": {
            "version": kvrope.__version__, "torch": torch.__version__, "cuda": torch.version.cuda,
            "python": platform.python_version(), "cpu": cpu_name(),
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "calls": options.calls, "rounds": options.rounds, "inference_mode": options.inference_mode,
        },
        "results": results,
    }  # fmt: skip


def parse(arguments: List[str]) -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--library", required=True, type=Path, help="libkvrope_host_time.so of the build")
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=default_device)
    parser.add_argument("--calls", type=int, default=100, help="of a batch, fewer than a stream queues")
    parser.add_argument("--rounds", type=int, default=101, help="batches of each layer (%(default)s)")
    parser.add_argument("--inference-mode", action="store_true", help="all under torch.inference_mode()")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not 1 <= options.calls <= 500 or options.rounds < 1:
        parser.error("expected 1 to 500 calls a batch, and a round or more")
    return options


def main(arguments: List[str]) -> None:
    options = parse(arguments)
    torch.ops.load_library(str(options.library.resolve()))
    if hasattr(os, "sched_setaffinity"):  # one core for all layers: cores differ
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    results = []
    gc.disable()
    with torch.inference_mode(options.inference_mode):
        for case, form in CASES.items():
            layers = layers_of(make_call(options.device, **form), options.device)
            times = measure(layers, options.rounds, options.calls, wait)
            results.append({"case": case, "layers": summary(times)})
            if options.device == "cuda":
                results[-1]["allocations"] = allocations(layers, options.calls)
    print(table(results))
    for name, note in NOTES.items():
        if name in results[0]["layers"]:
            print(f"{name}: {note}")
    if options.device == "cuda":
        most = max(max(result["allocations"].values()) for result in results)
        print(f"device memory handed out in {options.calls} calls of any kind: {most} blocks")
    if options.json:
        options.json.write_text(json.dumps(document(options, results), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
