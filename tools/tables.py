#!/usr/bin/env python3
"""Write the tables of a Markdown file from the result documents that they cite.

A table stands between two comments and is replaced:

  <!-- table: KIND RESULT.json GLOB... -->
  <!-- end of table -->

  floors   times beside copy, memcpy and chain, of kvrope-regress bench
  peers    times beside the other implementations, of bench_peers.py

Globs choose cases by name, or by name@L2 (flash-*@warm); without any, all. Paths are relative to the Markdown
file. With --check nothing is written, and the exit code is 1 where a table differs from its document.
"""

import argparse
import fnmatch
import json
import re
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

from result_document import cache_of

TABLE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)", re.S)


class Unusable(Exception):
    """A comment that names no kind, no document or no case."""


def microseconds(result: dict, name: str) -> Optional[float]:
    return result["times"].get(name, {}).get("microseconds")


def number(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.2f}"


def quotient(result: dict, name: str) -> str:
    floor = microseconds(result, name)
    return "" if floor is None else f"{microseconds(result, 'kvrope') / floor:.2f}"


def sectors(result: dict) -> str:
    count = result.get("partial_value_sectors", 0)
    return f"{count / microseconds(result, 'kvrope') / 1000:.0f}" if count else ""


def floor_columns(results: List[dict]) -> Dict[str, Callable[[dict], str]]:
    columns = {
        "kvrope": lambda result: number(microseconds(result, "kvrope")),
        "no PDL": lambda result: number(microseconds(result, "kvrope without PDL")),
        "copy": lambda result: quotient(result, "copy"),
        "memcpy": lambda result: quotient(result, "memcpy"),
        "chain": lambda result: quotient(result, "chain"),
    }
    if any(map(sectors, results)):
        columns["partial sectors/ns"] = sectors
    return columns


def peer_columns(results: List[dict]) -> Dict[str, Callable[[dict], str]]:
    names = list(dict.fromkeys(name for result in results for name in result["times"]))
    names = [name for name in names if name not in ("copy", "memcpy", "chain")]
    names.sort(key=lambda name: (name.endswith("without PDL"), name != "kvrope"))
    return {
        name.replace(" without", ", no"): lambda result, name=name: number(microseconds(result, name))
        for name in names
    }


def is_chosen(result: dict, glob: str) -> bool:
    name = result["name"]
    return fnmatch.fnmatch(f"{name}@{result['l2']}" if "@" in glob else name, glob)


KINDS = {"floors": floor_columns, "peers": peer_columns}


def table(kind: str, document: str, globs: List[str], folder: Path) -> str:
    if kind not in KINDS:
        raise Unusable(f"kind: got {kind}, want one of {', '.join(KINDS)}")
    try:
        results = json.loads((folder / document).read_text())["results"]
    except OSError as error:
        raise Unusable(f"{document}: {error.strerror}") from error
    results = [
        result
        for result in results
        if "kvrope" in result.get("times", {})
        and (not globs or any(is_chosen(result, glob) for glob in globs))
    ]
    first_of: Dict[str, int] = {}  # caches keep the document's order
    for result in results:
        first_of.setdefault(cache_of(result["name"]), len(first_of))
    if not results:
        raise Unusable(f"{document}: no measured case matches {' '.join(globs) or '*'}")
    results.sort(key=lambda result: result["num_tokens"])
    results.sort(key=lambda result: first_of[cache_of(result["name"])])
    columns = KINDS[kind](results)
    lines = ["| cache | T | L2 | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for result in results:
        cells = [cache_of(result["name"]), str(result["num_tokens"]), result["l2"]]
        lines.append("| " + " | ".join(cells + [column(result) for column in columns.values()]) + " |")
    return "\n".join(lines) + "\n"


def with_tables(text: str, folder: Path) -> str:
    def fill(match: re.Match) -> str:
        kind, document, *globs = match[2].split()
        return match[1] + table(kind, document, globs, folder) + match[3]

    return TABLE.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("markdown", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a table differs")
    options = parser.parse_args()
    try:
        old = options.markdown.read_text()
        new = with_tables(old, options.markdown.parent)
    except (Unusable, OSError) as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2
    if options.check:
        if new != old:
            print(f"tables: {options.markdown} differs from its documents", file=sys.stderr)
        return int(new != old)
    options.markdown.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
