#!/usr/bin/env python3
"""Print a Markdown table of what ncu has counted for each case: one CSV file a case, in the order given.

    ncu --csv --page raw --log-file FILE.csv --metrics ... kvrope-regress run ...
    tools/ncu_table.py --bytes tools/results/h200_bench.json CASE=FILE.csv...

Lines around the CSV (==PROF== ...) are passed over; of several launches the first counts. --bytes names a
result document of kvrope-regress bench, which has the bytes that each case must move. A file without a row is
told with what ncu said in it, its case is left out, and the exit code is 1. --json keeps all that was counted,
in bytes and nanoseconds.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Dict, List, Optional

SECTOR = 32  # bytes
UNITS = {
    "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
    "ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
COUNTED = ("gpu__", "dram__", "l1tex__", "lts__", "sm__", "launch__")  # of the launch, not attributes of the device
Counts = Dict[str, float]


class NothingCounted(Exception):
    """A file of ncu without a launch."""


def number(text: str, unit: str) -> Optional[float]:
    try:
        return float(text.replace(",", "")) * UNITS.get(unit, 1)
    except ValueError:
        return None  # the name of a kernel; n/a


def parse_csv(text: str) -> Counts:
    """Of the first launch in --page raw: a row of names, one of units, then one for each launch."""
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    rows = list(csv.reader(lines))
    first = next((i for i, row in enumerate(rows) if row[0] == "ID"), len(rows))
    if len(rows) < first + 3:
        said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
        raise NothingCounted("; ".join(said) or "no launch in it")
    columns = zip(*rows[first : first + 3])
    counted = {name: number(value, unit) for name, unit, value in columns if name.startswith(COUNTED)}
    return {name: value for name, value in counted.items() if value is not None}


def quotient(above: Optional[float], below: Optional[float]) -> Optional[float]:
    return above / below if above is not None and below else None


def total(*parts: Optional[float]) -> Optional[float]:
    return None if None in parts else sum(parts)


def derive(counts: Counts, useful: Dict[str, int]) -> Dict[str, Optional[float]]:
    """What the table shows, by its column."""
    get = counts.get
    sectors = get("lts__t_sectors_srcunit_tex_op_write.sum", get("lts__t_sectors_op_write.sum"))
    written = sectors * SECTOR if sectors is not None else None
    nanoseconds = get("gpu__time_duration.sum")
    dram = total(get("dram__bytes_read.sum"), get("dram__bytes_write.sum"))

    def sectors_a_request(kind: str) -> Optional[float]:
        name = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
        return quotient(get(name.format("sectors", kind)), get(name.format("requests", kind)))

    return {
        "us": quotient(nanoseconds, 1e3),
        "written, MB": quotient(written, 1e6),
        "written / useful": quotient(written, useful.get("rows_written")),
        "sectors a store": sectors_a_request("st"),
        "sectors a load": sectors_a_request("ld"),
        "DRAM read, MB": quotient(get("dram__bytes_read.sum"), 1e6),
        "DRAM written, MB": quotient(get("dram__bytes_write.sum"), 1e6),
        "DRAM GB/s": quotient(dram, nanoseconds),
        "DRAM, % of peak": get("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
        "warps, % of full": get("sm__warps_active.avg.pct_of_peak_sustained_active"),
        "registers": get("launch__registers_per_thread"),
    }


WHOLE = ("DRAM GB/s", "DRAM, % of peak", "warps, % of full", "registers")


def cell(column: str, value: Optional[float]) -> str:
    return "" if value is None else f"{value:.0f}" if column in WHOLE else f"{value:.2f}"


def table(cases: Dict[str, Dict[str, Optional[float]]]) -> str:
    columns = list(next(iter(cases.values())))
    lines = ["| case | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for case, values in cases.items():
        lines.append(f"| {case} | " + " | ".join(cell(name, value) for name, value in values.items()) + " |")
    return "\n".join(lines)


def useful_bytes(path: Path) -> Dict[str, Dict[str, int]]:
    return {result["name"]: result.get("bytes", {}) for result in json.loads(path.read_text())["results"]}


def main(arguments: List[str]) -> int:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("files", nargs="+", metavar="CASE=FILE.csv")
    parser.add_argument("--bytes", type=Path, help="result document of kvrope-regress bench")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    useful = useful_bytes(options.bytes) if options.bytes else {}
    counted: Dict[str, Counts] = {}
    for argument in options.files:
        case, _, path = argument.rpartition("=")  # names of cases have = in them
        try:
            counted[case] = parse_csv(Path(path).read_text())
        except (NothingCounted, OSError) as error:
            print(f"ncu_table: {path}: {getattr(error, 'strerror', error)}", file=sys.stderr)
    if counted:
        print(table({case: derive(counts, useful.get(case, {})) for case, counts in counted.items()}))
    if options.json:
        options.json.write_text(json.dumps(counted, indent=1) + "\n")
    return 0 if len(counted) == len(options.files) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
