"""Cases for the tests of the runner's command line."""

import json
from pathlib import Path


def write_cases(path: Path, *cases: dict, **document) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "cases": list(cases)} | document))
    return path


# What the file itself is no reason to refuse.
RAISES = {"id": "raises", "q_heads": 7}
REJECTED = {"id": "rejected", "q_heads": 7, "expect": {"error": ": k: "}}
MISMATCH = {"id": "mismatch", "tolerance": {"ulps": 0, "relative": 0}, "positions": {"start": 3}}
TOO_LARGE = {"id": "too-large", "num_tokens": 2_000_000_000, "q_heads": 64, "head_dim": 512}
