"""Result documents of kvrope-regress and bench_peers.py: their results, and the sweeps among them."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional

FLOORS = ("copy", "memcpy", "chain")


class BadDocument(Exception):
    """No file, or none that holds results."""


def read_results(paths: List[str]) -> List[dict]:
    results = []
    for path in paths:
        try:
            results += json.loads(Path(path).read_text())["results"]
        except OSError as error:
            raise BadDocument(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BadDocument(f"{path}: no result document") from error
    return results


def cache_of(name: str) -> str:
    """What all numbers of tokens have in common: flash-bf16 of flash-bf16/prefill/num_tokens=256."""
    return re.sub(r"/num_tokens=\d+|/(decode|prefill)(?=/|$)", "", name)


def is_measured(result: dict) -> bool:
    return "kvrope" in result.get("times", {})


def copy_floor(times: Dict[str, dict]) -> Optional[str]:
    """That moves the bytes of a call and does nothing else: copy, or on the CPU memcpy."""
    return next((name for name in ("copy", "memcpy") if name in times), None)


class Sweep(NamedTuple):
    """What its measurements have in common: flash-bf16/prefill, num_tokens, rotating."""

    cases: str
    swept: str
    l2: str

    def __str__(self) -> str:
        return f"{self.cases} over {self.swept}, {self.l2}"


def sweeps(results: Iterable[dict]) -> Dict[Sweep, Dict[int, dict]]:
    """Measured results that differ in one size alone, by that size, in its order."""
    found: Dict[Sweep, Dict[int, dict]] = defaultdict(dict)
    for result in filter(is_measured, results):
        size = re.fullmatch(r"(.+)/(\w+)=(\d+)", result["name"])
        if size:
            found[Sweep(size[1], size[2], result["l2"])][int(size[3])] = result
    return {sweep: dict(sorted(sizes.items())) for sweep, sizes in found.items()}
