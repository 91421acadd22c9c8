"""Groups of calls that are timed beside each other: replays of CUDA graphs, on the CPU wall clock."""

import ctypes
import random
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional

import torch

ROTATING_BYTES, CALLS, MOST_SETS = 600_000_000, 20, 512
UNCOUNTED_ROUNDS = 3
ENOUGH_MICROSECONDS = 2000

Run = Callable[[int], None]  # enqueues call i


class Group(NamedTuple):
    """Call i uses set i % sets."""

    sets: int
    calls: int


def plan_calls(l2: str, moved: int, held: int, memory: int) -> Group:
    """As kvrope-regress plans them (tools/runner/l2_state.cpp)."""
    if l2 == "warm":
        return Group(1, CALLS)
    affordable = max(1, min(memory // max(held, 1), MOST_SETS))
    if l2 == "flushed":
        return Group(min(CALLS, affordable), min(CALLS, affordable))
    sets = max(min(ROTATING_BYTES // max(moved, 1) + 1, affordable), min(2, affordable))
    return Group(sets, -(-CALLS // sets) * sets)


class Library:
    """Floors and the removal of programmatic dependencies (tools/bench/floors.h)."""

    def __init__(self, path: str):
        self._library = ctypes.CDLL(str(Path(path).resolve()))

    def __call__(self, function: str, *arguments: object) -> None:
        error = getattr(self._library, function)(*arguments)
        if error:
            raise RuntimeError(f"{function}: CUDA error {error}")


class CacheFlush:
    """Puts other data in the caches, by reading: what was written would still have to leave them."""

    def __init__(self, device: torch.device):
        self._other = torch.zeros(64 << 20, device=device)
        self._sum = torch.empty((), device=device)

    def __call__(self) -> None:
        torch.sum(self._other, dim=0, out=self._sum)


class CudaCalls:
    def __init__(self, run: Run, group: Group, l2: str, library: Library, without_pdl: bool):
        self._stream = torch.cuda.Stream()
        self._flush = CacheFlush(torch.device("cuda")) if l2 == "flushed" else None
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            for i in range(
                min(group.calls, 3)
            ):  # what first calls compile or allocate is no part of the graph
                run(i)
        torch.cuda.synchronize()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._calls = self._calls_that_do(run, group)
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self._graph, stream=self._stream):
            for i in range(self._calls):
                run(i)
        if without_pdl:
            library("kvrope_graph_without_pdl", ctypes.c_void_p(self._graph.raw_cuda_graph()))
        self._graph.instantiate()

    def _calls_that_do(self, run: Run, group: Group) -> int:
        """All of the group; of slow calls fewer, but each set once."""
        with torch.cuda.stream(self._stream):
            self._start.record()
            run(0)
            self._end.record()
        self._end.synchronize()
        microseconds = self._start.elapsed_time(self._end) * 1000
        return max(group.sets, min(group.calls, int(ENOUGH_MICROSECONDS / max(microseconds, 1)) + 1))

    def microseconds(self) -> float:
        """A call. What goes before leaves the caches as wanted, and runs while the host enqueues the rest."""
        with torch.cuda.stream(self._stream):
            self._flush() if self._flush else self._graph.replay()
            self._start.record()
            self._graph.replay()
            self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1000 / self._calls


class CpuCalls:
    def __init__(self, run: Run, group: Group, l2: str):
        self._run, self._group, self._next = run, group, 0
        self._flush = CacheFlush(torch.device("cpu")) if l2 == "flushed" else None
        for i in range(min(group.calls, 3)):
            run(i)
        self._calls = 1
        self._calls = max(1, min(int(ENOUGH_MICROSECONDS / max(self._measure(), 1)), group.calls))

    def _measure(self) -> float:
        start = time.perf_counter()
        for _ in range(self._calls):
            self._run(self._next % self._group.calls)
            self._next += 1
        return (time.perf_counter() - start) * 1e6 / self._calls

    def microseconds(self) -> float:
        if self._flush:
            self._flush()
        elif self._group.sets == 1:
            self._run(0)
        return self._measure()


def wake(device: torch.device, seconds: float = 0.5) -> None:
    """Work before what is timed: a GPU at rest takes a while to raise its clocks."""
    data = torch.zeros(1 << 20, device=device)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        data.add_(1).sum().item()  # waits for the device


def time_in_rounds(candidates: Dict[str, object], rounds: int) -> Dict[str, List[float]]:
    """Microseconds a call: each candidate once a round, in an order drawn anew each round."""
    times: Dict[str, List[float]] = {name: [] for name in candidates}
    for number in range(-UNCOUNTED_ROUNDS, rounds):
        for name in random.sample(list(candidates), len(candidates)):
            measured = candidates[name].microseconds()
            if number >= 0:
                times[name].append(measured)
    return times


def host_microseconds(run: Callable[[], object], synchronize: Optional[Callable[[], None]]) -> float:
    """Wall clock of one eager call: the median of batches that a stream can queue."""
    batches = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(200):
            run()
        batches.append((time.perf_counter() - start) * 1e6 / 200)
        if synchronize:
            synchronize()
    return sorted(batches)[len(batches) // 2]
