#!/usr/bin/env python3
"""Time the fused call beside other implementations of it: one process, one harness, random order in each round.

Takes the case files of kvrope-regress and writes its result format, with the candidates under `times`. Each is
checked against double precision before it is timed. On CUDA the figure is the median of replays of a graph of
many calls, on the CPU wall clock; L2 states are those of `kvrope-regress bench`. Candidates with programmatic
dependent launch are measured without it too. sglang is found on PYTHONPATH, and needs apache-tvm-ffi and nvcc.
"""

import argparse
import fnmatch
import gc
import json
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, TextIO

import torch

from bench.peer_call import Call, Wanted
from bench.peer_cases import L2_STATES, Case, read_cases
from bench.peer_floors import make_floors
from bench.peer import Peer, Unsupported
from bench.peers import make_peers
from bench.timed_calls import (
    CpuCalls,
    CudaCalls,
    Library,
    host_microseconds,
    plan_calls,
    time_in_rounds,
    wake,
)

ROOT = Path(__file__).resolve().parents[1]


class Unusable(Exception):
    """What the command was given cannot be used."""


class Failed(Exception):
    """A candidate's results are wrong, or its call raises."""


def check(peer: Peer, call: Call, wanted: Wanted) -> None:
    wanted.restore(call)
    try:
        peer.bind(call)()
    except Unsupported:
        raise
    except Exception as error:  # whatever a package raises
        raise Failed(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    complaints = wanted.complaints(call, peer.in_place, peer.loose)
    wanted.restore(call)
    if complaints:
        raise Failed("wrong: " + "; ".join(complaints))


class Bench:
    def __init__(
        self,
        options: argparse.Namespace,
        peers: List[Peer],
        absent: Dict[str, str],
        library: Optional[Library],
    ):
        self.options, self.peers, self.absent, self.library = options, peers, absent, library
        self.is_cuda = options.device == "cuda"

    def measure(self, case: Case, l2: str) -> dict:
        """A result of the document, for one L2 state."""
        first = Call(case, self.options.device)
        usable, reasons = self._usable(first)
        moved = first.bytes()
        memory = torch.cuda.mem_get_info()[0] // 2 if self.is_cuda else 4_000_000_000
        group = plan_calls(l2, moved.all, first.held_bytes() + 2 * moved.all, memory)
        table = None if l2 == "flushed" else first.table
        sets = [first] + [Call(case, self.options.device, table) for _ in range(group.sets - 1)]
        candidates, moves = {}, {}
        for peer in usable:
            bound = [peer.bind(call) for call in sets]
            self._add(candidates, peer, lambda i, bound=bound: bound[i % len(bound)](), group, l2, reasons)
        for name in candidates:
            moves[name] = moved.all
        for name, (count, run) in make_floors(sets, self.library, table is None).items():
            moves[name], candidates[name] = count, self._timed(run, group, l2, False)
        times = time_in_rounds(candidates, self.options.rounds)
        result = {
            "num_tokens": first.tokens,
            "l2": l2,
            "checked_against": "double precision",
            "sets": group.sets,
            "calls": group.calls,
            "bytes": moved.describe(),
            **describe_times(times, moves),
            "absent": reasons,
        }
        if first.tokens == 1:
            result["host"] = self._host(usable, first)
            result["host_microseconds"] = result["host"].get("kvrope")
        return result

    def _usable(self, call: Call) -> tuple:
        wanted, usable, reasons = Wanted(call), [], dict(self.absent)
        for peer in self.peers:
            try:
                check(peer, call, wanted)
                usable.append(peer)
            except Unsupported as reason:
                reasons[peer.name] = f"has no call for {reason}"
            except Failed as reason:
                if peer.name == "kvrope":
                    raise
                reasons[peer.name] = str(reason)
        return usable, reasons

    def _timed(self, run, group, l2: str, without_pdl: bool):
        if self.is_cuda:
            return CudaCalls(run, group, l2, self.library, without_pdl)
        return CpuCalls(run, group, l2)

    def _add(self, candidates: dict, peer: Peer, run, group, l2: str, reasons: Dict[str, str]) -> None:
        try:
            candidates[peer.name] = self._timed(run, group, l2, False)
            if peer.has_pdl and self.is_cuda:
                candidates[peer.name + " without PDL"] = self._timed(run, group, l2, True)
        except Exception as error:  # a call that cannot be captured, say
            if peer.name == "kvrope":
                raise
            candidates.pop(peer.name, None)
            reasons[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]

    def _host(self, usable: List[Peer], call: Call) -> Dict[str, float]:
        """Microseconds that an eager call costs its thread, and what a small operator of PyTorch costs."""
        synchronize = torch.cuda.synchronize if self.is_cuda else None
        one = torch.ones(8, device=self.options.device)
        runs = {peer.name: peer.bind(call) for peer in usable}
        runs["add_"] = lambda: torch.ops.aten.add_.Tensor(one, one)
        return {name: round(host_microseconds(run, synchronize), 3) for name, run in runs.items()}


def describe_times(times: Dict[str, List[float]], moves: Dict[str, int]) -> dict:
    medians = {name: statistics.median(rounds) for name, rounds in times.items()}
    described = {
        name: {
            "microseconds": round(medians[name], 4),
            "bytes": moves[name],
            "gb_per_second": round(moves[name] / medians[name] / 1000, 4),
            "rounds": [round(value, 4) for value in rounds],
        }
        for name, rounds in times.items()
    }
    ours = medians.get("kvrope")
    ratios = {
        name: round(ours / value, 4)
        for name, value in medians.items()
        if ours and name not in ("kvrope", "kvrope without PDL")
    }
    return {"times": described, "ratios": ratios}


def line_of(case: Case, result: dict) -> str:
    times = "  ".join(f"{name} {value['microseconds']:.2f}" for name, value in result["times"].items())
    return f"{case.name}, {result['l2']}: {times}"


def select(options: argparse.Namespace) -> List[Case]:
    try:
        cases = [case for file in options.files for case in read_cases(file)]
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"no case file: {error} (kvrope-regress says where)") from error
    wanted = set(options.tag.split(",")) if options.tag else None
    cases = [case for case in cases if fnmatch.fnmatchcase(case.name, options.filter)]
    cases = [case for case in cases if wanted is None or wanted & set(case.tags)]
    if not cases:
        raise Unusable("0 cases matched")
    return cases


def open_output(path: Optional[str]) -> Optional[TextIO]:
    """Before anything is measured, so that a path that cannot be written costs nothing."""
    try:
        return open(path, "w") if path else None
    except OSError as error:
        raise Unusable(f"{path}: cannot be written") from error


def meta() -> dict:
    import kvrope

    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {
        "version": kvrope.__version__,
        "git_commit": commit or None,
        "arguments": sys.argv,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def describe_device(device: str) -> dict:
    if device == "cuda":
        return {"type": "cuda", "name": torch.cuda.get_device_name()}
    return {
        "type": "cpu",
        "name": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def find_floors(given: Optional[str]) -> Optional[str]:
    candidates = (
        [Path(given)]
        if given
        else [ROOT / folder / "tools/bench/libkvrope_floors.so" for folder in ("build-gpu", "build")]
    )
    return next((str(path) for path in candidates if path.is_file()), None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILES", help="case files (JSON)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--filter", metavar="GLOB", default="*", help="only cases whose whole name matches")
    parser.add_argument(
        "--tag", metavar="TAGS", help="only cases with any of these tags, separated by commas"
    )
    parser.add_argument(
        "--l2", metavar="STATES", help="instead of what tags say: warm, flushed, rotating (several: commas)"
    )
    parser.add_argument("--peers", metavar="NAMES", help="only these, separated by commas")
    parser.add_argument(
        "--seed-kernel",
        metavar="PATH",
        help="Python file with a Triton kernel of the same name; called triton",
    )
    parser.add_argument(
        "--floors",
        metavar="PATH",
        help="libkvrope_floors.so of the build folder (found in build-gpu and build)",
    )
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("--json", metavar="OUT", help="write the results here")
    options = parser.parse_args()
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.l2 = options.l2.split(",") if options.l2 else None
    if options.l2 and not set(options.l2) <= set(L2_STATES):
        parser.error(f"--l2: expected some of {', '.join(L2_STATES)}, got {','.join(options.l2)}")
    if options.rounds < 1:
        parser.error("--rounds: expected a positive number")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Report:
    """Lines and results of the cases."""

    def __init__(self) -> None:
        self.results: List[dict] = []
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def without_times(self, case: Case, disposition: str, message: str) -> None:
        self.counts[disposition] += 1
        print(f"{disposition} {case.name}: {message}", flush=True)
        self.results.append({**describe_case(case), "disposition": disposition, "message": message})

    def measure(self, bench: Bench, case: Case, states: List[str]) -> None:
        if case.unsupported():
            return self.without_times(case, "skipped", f"not supported here: {case.unsupported()}")
        try:
            for l2 in states:
                result = {"disposition": "passed", "message": "", **bench.measure(case, l2)}
                print(line_of(case, result), flush=True)
                self.results.append({**describe_case(case), **result})
                release_memory(bench.is_cuda)
            self.counts["passed"] += 1
        except (Failed, RuntimeError) as error:
            self.without_times(case, "failed", str(error))


def describe_case(case: Case) -> dict:
    return {"name": case.name, "file": case.file, "tags": case.tags, "seed": case.get("seed", 0)}


def release_memory(is_cuda: bool) -> None:
    gc.collect()  # graphs hold theirs
    if is_cuda:
        torch.cuda.empty_cache()


def load_library(options: argparse.Namespace) -> Optional[Library]:
    if options.device != "cuda":
        return None
    path = find_floors(options.floors)
    if path is None:
        missing = options.floors or "libkvrope_floors.so"
        raise Unusable(f"{missing}: not found (KVROPE_BUILD_TOOLS builds it)")
    return Library(path)


def run(options: argparse.Namespace) -> int:
    cases = select(options)
    library = load_library(options)
    peers, absent = make_peers(options.seed_kernel, options.peers.split(",") if options.peers else None)
    if "kvrope" in absent:
        raise Unusable(f"kvrope: {absent['kvrope']}")
    out = open_output(options.json)
    for name, reason in absent.items():
        say(f"absent: {name}: {reason}")
    bench, report = Bench(options, peers, absent, library), Report()
    wake(torch.device(options.device))
    for case in cases:
        report.measure(bench, case, options.l2 or case.l2_states)
    if out:
        device = describe_device(options.device)
        document = {"meta": {**meta(), "absent": absent}, "device": device, "results": report.results}
        with out:
            out.write(json.dumps(document, indent=1) + "\n")
    print(", ".join(f"{count} {disposition}" for disposition, count in report.counts.items()))
    return 1 if report.counts["failed"] else 0


def main() -> int:
    options = parse()
    if options.device == "cuda" and not torch.cuda.is_available():
        say("bench_peers: cuda: no CUDA device is there")
        return 3
    torch.manual_seed(0)
    random.seed(0)
    try:
        with torch.inference_mode():
            return run(options)
    except Unusable as error:
        say(f"bench_peers: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
