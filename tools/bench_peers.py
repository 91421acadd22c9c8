#!/usr/bin/env python3
"""Time the fused call beside its floors and other implementations: CUDA graph replay, one process, random order.

Llama-3-8B shapes (QH 32, KH 8, D 128, block_size 16, bf16, fp32 table), q_out and k_out written, no zeros.
Each candidate is checked before it is timed. Graphs of many launches are replayed; the figure is the median of the
rounds in microseconds a call. L2 state: W, the same buffers every call (warm); R, rotating over more than 600 MB.
Slots: rnd, random slots and positions (decode); seq, runs of consecutive slots in shuffled blocks (prefill).
"""

import argparse
import ctypes
import importlib.util
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import torch

import kvrope

Q_HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, TABLE_ROWS = 32, 8, 128, 16, 32768
ROTATING_BYTES = 600_000_000


class Row(NamedTuple):
    layout: str  # flash, x_split or x_split_shuffle
    cache_dtype: torch.dtype
    num_tokens: int
    l2: str  # W or R
    slots: str  # rnd or seq

    @property
    def name(self) -> str:
        dtype = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8"}[self.cache_dtype]
        return f"{self.layout} {dtype} T={self.num_tokens} {self.l2} {self.slots}"


def rows(tokens: List[int], layouts: List[str]) -> List[Row]:
    result = []
    for layout in layouts:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            for num_tokens in tokens:
                small = num_tokens <= 64
                result.append(Row(layout, dtype, num_tokens, "W" if small else "R", "rnd" if small else "seq"))
    return result


def make_table() -> torch.Tensor:
    inverse_frequency = 1.0 / 10000.0 ** (torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.arange(TABLE_ROWS).float()[:, None] * inverse_frequency
    return torch.cat([angles.cos(), angles.sin()], dim=1).cuda()


def slots_and_positions(row: Row) -> tuple:
    t = row.num_tokens
    if row.slots == "rnd":
        num_blocks = max(64, 2 * t // BLOCK_SIZE)
        return num_blocks, torch.randperm(num_blocks * BLOCK_SIZE)[:t], torch.randint(0, TABLE_ROWS, (t,))
    num_blocks = -(-t // BLOCK_SIZE) + 16
    blocks = torch.randperm(num_blocks).repeat_interleave(BLOCK_SIZE)[:t]
    return num_blocks, blocks * BLOCK_SIZE + torch.arange(t) % BLOCK_SIZE, torch.arange(t)


class Arguments:
    """One set of tensors for a row."""

    def __init__(self, row: Row, table: torch.Tensor):
        t = row.num_tokens
        self.row, self.table = row, table
        self.q = torch.randn(t, Q_HEADS, HEAD_SIZE, dtype=torch.bfloat16, device="cuda")
        self.k, self.v = (torch.randn(t, KV_HEADS, HEAD_SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.q_out, self.k_out = torch.empty_like(self.q), torch.empty_like(self.k)
        num_blocks, slots, positions = slots_and_positions(row)
        self.slots, self.positions = slots.cuda(), positions.cuda()
        self.x = 16 // row.cache_dtype.itemsize
        key_shape = value_shape = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
        if row.layout != "flash":
            key_shape = (num_blocks, KV_HEADS, HEAD_SIZE // self.x, BLOCK_SIZE, self.x)
            value_shape = (num_blocks, KV_HEADS, HEAD_SIZE, BLOCK_SIZE)
        if row.layout == "x_split_shuffle":
            value_shape = (num_blocks, KV_HEADS, BLOCK_SIZE // self.x, HEAD_SIZE, self.x)
        self.key_cache = torch.zeros(key_shape, device="cuda").to(row.cache_dtype)
        self.value_cache = torch.zeros(value_shape, device="cuda").to(row.cache_dtype)
        is_fp8 = row.cache_dtype != torch.bfloat16
        self.k_scale = torch.tensor(0.5, device="cuda") if is_fp8 else None
        self.v_scale = torch.tensor(2.0, device="cuda") if is_fp8 else None

    def positional(self) -> tuple:
        return (self.q, self.k, self.v, self.key_cache, self.value_cache, self.slots, self.positions, self.table,
                self.k_scale, self.v_scale, True, self.row.layout == "flash", True, None, self.q_out, self.k_out, False)

    def cached_rows(self) -> tuple:
        """K and V of the tokens' slots, read back from the caches."""
        block, offset = self.slots // BLOCK_SIZE, self.slots % BLOCK_SIZE
        keys, values = self.key_cache.float(), self.value_cache.float()
        if self.row.layout == "flash":
            return keys[block, offset], values[block, offset]
        keys = keys[block, :, :, offset].reshape(len(block), KV_HEADS, HEAD_SIZE)
        if self.row.layout == "x_split":
            return keys, values[block, :, :, offset]
        return keys, values[block, :, offset // self.x, :, offset % self.x]

    def bytes_moved(self) -> int:
        """Inputs, table rows and indices read; outputs and cache rows written."""
        tensors = [self.q, self.k, self.v, self.q_out, self.k_out, self.slots, self.positions]
        cached = 2 * self.k.numel() * self.row.cache_dtype.itemsize
        return sum(x.numel() * x.itemsize for x in tensors) + cached + self.row.num_tokens * self.table.stride(0) * 4

    def bytes_of_rows(self) -> int:
        """The same without table rows and indices: what the copy floor moves."""
        return self.bytes_moved() - self.row.num_tokens * (self.table.stride(0) * 4 + 16)


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def check(args: Arguments, run: Callable[[Arguments], None]) -> None:
    """Raise where the outputs or the cached rows are not what the call should leave."""
    for out in (args.q_out, args.k_out):
        out.fill_(float("nan"))
    run(args)
    cos_sin = args.table[args.positions]
    k, v = rotate(args.k, cos_sin), args.v.float()
    torch.testing.assert_close(args.q_out.float(), rotate(args.q, cos_sin), atol=0.02, rtol=0.01)
    torch.testing.assert_close(args.k_out.float(), k, atol=0.02, rtol=0.01)
    k_cached, v_cached = args.cached_rows()
    tolerance = dict(atol=0.02, rtol=0.01) if args.k_scale is None else dict(atol=0.05, rtol=0.07)
    torch.testing.assert_close(k_cached, k if args.k_scale is None else k / args.k_scale, **tolerance)
    torch.testing.assert_close(v_cached, v if args.v_scale is None else v / args.v_scale, **tolerance)


def run_kvrope(args: Arguments) -> None:
    kvrope.fused_qk_rope_reshape_and_cache(*args.positional())


def load_seed(path: str) -> Callable[[Arguments], None]:
    spec = importlib.util.spec_from_file_location("seed_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda args: module.fused_qk_rope_reshape_and_cache(*args.positional())


class Floors:
    """copy, memcpy and chain (tools/bench/floors.cu)."""

    def __init__(self, library: str):
        self.library = ctypes.CDLL(library)
        self.buffers: Dict[str, torch.Tensor] = {}

    def candidates(self, row: Row, sets: List[Arguments]) -> Dict[str, Callable[[int], None]]:
        words = sets[0].bytes_of_rows() // 2 // 16
        buffers = [torch.randint(0, 2**31, (2, words * 2), device="cuda") for _ in sets]
        stream = lambda: ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)  # noqa: E731
        pointer = lambda x: ctypes.c_void_p(x.data_ptr())  # noqa: E731

        def copy(i: int) -> None:
            source, target = buffers[i % len(sets)]
            error = self.library.kvrope_floor_copy(pointer(source), pointer(target), ctypes.c_int64(words), stream())
            assert error == 0, error

        def memcpy(i: int) -> None:
            source, target = buffers[i % len(sets)]
            target.copy_(source)

        chain_cache = torch.empty(1 + max(int(s.slots.max()) for s in sets), 512 * 2, dtype=torch.int64, device="cuda")

        def chain(i: int) -> None:
            a = sets[i % len(sets)]
            error = self.library.kvrope_floor_chain(
                pointer(a.positions), pointer(a.table), pointer(a.slots), pointer(a.q), pointer(a.q_out),
                pointer(chain_cache), row.num_tokens, 512, stream())
            assert error == 0, error

        floors = {"copy": copy, "memcpy": memcpy}
        if row.num_tokens <= 512:
            floors["chain"] = chain
        return floors


def capture(run: Callable[[int], None], calls: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i)
    return graph


def time_row(row: Row, table: torch.Tensor, implementations: Dict[str, Callable[[Arguments], None]], floors: Floors,
             rounds: int) -> dict:
    first = Arguments(row, table)
    count = 1 if row.l2 == "W" else max(2, -(-ROTATING_BYTES // first.bytes_moved()))
    sets = [first] + [Arguments(row, table) for _ in range(count - 1)]
    candidates: Dict[str, Callable[[int], None]] = {}
    for name, run in implementations.items():
        check(first, run)
        candidates[name] = lambda i, run=run: run(sets[i % count])
    candidates.update(floors.candidates(row, sets))

    calls = 20 if row.l2 == "W" else max(4, count)
    graphs = {name: capture(run, calls) for name, run in candidates.items()}
    times: Dict[str, List[float]] = {name: [] for name in graphs}
    for round_number in range(rounds + 3):
        for name in random.sample(list(graphs), len(graphs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if round_number >= 3:
                times[name].append(start.elapsed_time(end) * 1000 / calls)
    return {
        "id": row.name,
        "num_tokens": row.num_tokens,
        "bytes": first.bytes_moved(),
        "microseconds": {name: round(statistics.median(t), 3) for name, t in times.items()},
    }


def git_commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def print_table(results: List[dict], names: List[str]) -> None:
    print("| row | " + " | ".join(names) + " | kvrope / copy |")
    print("|---" * (len(names) + 2) + "|")
    for result in results:
        us = result["microseconds"]
        cells = [f"{us[name]:.2f}" if name in us else "" for name in names]
        print(f"| {result['id']} | " + " | ".join(cells) + f" | {us['kvrope'] / us['copy']:.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed-kernel", metavar="PATH", help="Triton file with the function of the same name")
    parser.add_argument("--floors", metavar="PATH", required=True, help="libkvrope_floors.so of the build folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 4096, 16384])
    parser.add_argument("--layouts", nargs="+", default=["flash", "x_split", "x_split_shuffle"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="OUT", help="write the results here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_peers: no CUDA device", file=sys.stderr)
        return 3

    torch.manual_seed(0)
    random.seed(0)
    implementations = {"kvrope": run_kvrope}
    if options.seed_kernel:
        implementations["seed"] = load_seed(options.seed_kernel)
    else:
        print("bench_peers: seed: absent (no --seed-kernel)", file=sys.stderr)
    table, floors = make_table(), Floors(str(Path(options.floors).resolve()))
    results = []
    for row in rows(options.tokens, options.layouts):
        print(f"bench_peers: {row.name}", file=sys.stderr)
        results.append(time_row(row, table, implementations, floors, options.rounds))
        torch.cuda.empty_cache()
    print_table(results, list(implementations) + ["copy", "memcpy", "chain"])
    if options.json:
        document = {
            "meta": {"kvrope": kvrope.__version__, "commit": git_commit(), "torch": torch.__version__,
                     "cuda": torch.version.cuda, "rounds": options.rounds},
            "device": torch.cuda.get_device_name(),
            "results": results,
        }
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
