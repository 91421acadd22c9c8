"""The cases of a case file that the peer benchmark can make; the schema in tests/shapes has all keys."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

L2_STATES = ("warm", "flushed", "rotating")

# Keys, and members of objects, that a case may have to be measured; any other value makes it a skipped one.
SUPPORTED: Dict[str, Any] = {
    "id": str,
    "tags": list,
    "seed": int,
    "tolerance": dict,
    "num_tokens": int,
    "q_heads": int,
    "kv_heads": int,
    "head_dim": int,
    "rotary_dim": int,
    "block_size": int,
    "dtype": ("bf16", "fp16"),
    "table_dtype": ("fp32",),
    "kv_cache_dtype": ("auto", "fp8_e4m3"),
    "layout": ("flash_nhd", "flash_hnd", "packed_kv", "x_split", "x_split_shuffle"),
    "style": ("neox", "gptj"),
    "table": {"base": (int, float), "rows": int, "width": ("half",)},
    "positions": {"pattern": ("contiguous", "random"), "start": int, "dtype": ("int32", "int64")},
    "slots": {"pattern": ("sequential", "blocks", "random"), "dtype": ("int32", "int64")},
    "scales": {"k": (int, float), "v": (int, float), "q": (int, float)},
    "q_out_dtype": ("auto", "fp8_e4m3", "fp8_e5m2"),
    "norm": {
        "q": (True, False),
        "k": (True, False),
        "eps": (int, float),
        "plus_one": (True, False),
        "weight_dtype": ("auto", "fp32"),
    },
    "mrope": {"section": list, "interleaved": (True, False)},
    "inputs": {"strides": ("contiguous",), "values": ("normal", "ramp")},
    "outputs": {"q_out": (True,), "k_out": (True,), "zeros_out": (False,)},
}


@dataclass
class Case:
    name: str
    file: str
    keys: Dict[str, Any]

    def get(self, path: str, default: Any) -> Any:
        """The value of a key, or of a member of an object: "table.rows"."""
        value: Any = self.keys
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def tags(self) -> List[str]:
        return self.get("tags", [])

    @property
    def l2_states(self) -> List[str]:
        return [state for state in L2_STATES if state in self.tags] or ["warm"]

    def unsupported(self) -> str:
        """What this benchmark cannot make of the case; empty when it can."""
        problems = _problems(self.keys, SUPPORTED, "")
        if "num_tokens" not in self.keys:
            problems.append("num_tokens is left out")
        return ", ".join(problems)


def _problems(keys: Dict[str, Any], supported: Dict[str, Any], prefix: str) -> List[str]:
    problems = []
    for key, value in keys.items():
        allowed = supported.get(key)
        name = prefix + key
        if allowed is None:
            problems.append(name)
        elif isinstance(allowed, dict):
            problems += _problems(value, allowed, name + ".")
        elif isinstance(allowed, tuple) and not all(isinstance(x, type) for x in allowed):
            if value not in allowed:
                problems.append(f"{name} = {json.dumps(value)}")
        elif not isinstance(value, allowed) or isinstance(value, bool):
            problems.append(f"{name} = {json.dumps(value)}")
    return problems


def _apply(keys: Dict[str, Any], more: Dict[str, Any]) -> None:
    """Later layers win; inside an object key by key, but a named pattern starts afresh."""
    for path, value in more.items():
        *parents, last = path.split(".")
        target = keys
        for parent in parents:
            target = target.setdefault(parent, {})
        if isinstance(value, dict) and isinstance(target.get(last), dict) and "pattern" not in value:
            _apply(target[last], value)
        else:
            target[last] = json.loads(json.dumps(value))


def _swept(file_sweep: Dict[str, list], case_sweep: Dict[str, list]) -> Iterator[List[Tuple[str, Any]]]:
    sweep = {**file_sweep, **case_sweep}
    yield from (list(zip(sweep, values)) for values in itertools.product(*sweep.values()))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def read_cases(path: str) -> List[Case]:
    """Expanded as kvrope-regress expands them, with the same names."""
    document = json.loads(Path(path).read_text())
    cases = []
    for case in document["cases"]:
        own = {key: value for key, value in case.items() if key not in ("id", "sweep")}
        for values in _swept(document.get("sweep", {}), case.get("sweep", {})):
            keys: Dict[str, Any] = {}
            for layer in (document.get("defaults", {}), own, dict(values)):
                _apply(keys, layer)
            name = "/".join([case["id"], *(f"{key}={_text(value)}" for key, value in values)])
            cases.append(Case(name, path, keys))
    return cases
