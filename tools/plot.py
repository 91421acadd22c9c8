#!/usr/bin/env python3
"""Draw result documents of kvrope-regress and bench_peers.py as PNGs.

  throughput.png   GB/s over the number of tokens, ours and memcpy; a panel a cache, a line an L2 state
  peers.png        time of each other implementation as a multiple of ours, over the number of tokens
  growth.png       time over each swept size, ours and the copy of the same bytes, of cases tagged growth, which the
                   two above leave out
  error.png        largest error of each tensor in every case that was run, in ULPs (fp8 caches: codes)

Those for which the documents hold nothing are left out, and that is said.
"""

import argparse
import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from result_document import FLOORS, BadDocument, cache_of, copy_floor, is_measured, read_results, sweeps

LEAST_POINTS = 4  # sizes that a panel needs

Lines = Dict[str, Dict[int, float]]  # line -> size -> value
Curves = Dict[Tuple[str, str], Lines]  # of each panel: its title and what is swept


def fail(message: str) -> None:
    print(f"plot: {message}", file=sys.stderr)
    sys.exit(2)


def is_of_growth(result: dict) -> bool:
    return "growth" in result.get("tags", [])


def measured(results: List[dict]) -> Iterator[Tuple[Tuple[str, str], str, int, Dict[str, dict]]]:
    for result in results:
        if is_measured(result) and not is_of_growth(result):
            panel = cache_of(result["name"]), "tokens"
            yield panel, result["l2"], result["num_tokens"], result["times"]


def drawable(curves: Curves) -> Curves:
    """Panels of enough points, whose lines are then enough too."""
    panels = {}
    for panel, lines in curves.items():
        if len({size for points in lines.values() for size in points}) >= LEAST_POINTS:
            panels[panel] = lines
    return panels


def throughput(results: List[dict]) -> Curves:
    """All bytes that a call must move; memcpy moves as many."""
    curves: Curves = defaultdict(lambda: defaultdict(dict))
    for panel, l2, tokens, times in measured(results):
        for name in ("kvrope", "memcpy"):
            if name in times:
                curves[panel][f"{name}, {l2}"][tokens] = times[name]["gb_per_second"]
    return drawable(curves)


def ratios(results: List[dict]) -> Curves:
    curves: Curves = defaultdict(lambda: defaultdict(dict))
    for panel, l2, tokens, times in measured(results):
        for name, value in times.items():
            if name not in FLOORS and not name.startswith("kvrope"):
                ours = times.get(
                    "kvrope without PDL" if name.endswith("without PDL") else "kvrope", times["kvrope"]
                )
                curves[panel][f"{name}, {l2}"][tokens] = value["microseconds"] / ours["microseconds"]
    return drawable(curves)


def growth(results: List[dict]) -> Curves:
    curves: Curves = defaultdict(lambda: defaultdict(dict))
    for sweep, of_size in sweeps(filter(is_of_growth, results)).items():
        for size, result in of_size.items():
            tokens = "" if sweep.swept == "num_tokens" else f", T = {result['num_tokens']}"
            for name in filter(None, ("kvrope", copy_floor(result["times"]))):
                line = curves[cache_of(sweep.cases), sweep.swept][f"{name}{tokens}, {sweep.l2}"]
                line[size] = result["times"][name]["microseconds"]
    return drawable(curves)


def errors(results: List[dict]) -> Dict[str, List[float]]:
    """Tensor -> its largest error in each case."""
    found: Dict[str, List[float]] = defaultdict(list)
    for result in results:
        for tensor, ulps in result.get("largest_error", {}).items():
            if "times" not in result and ulps is not None:
                found[tensor].append(ulps)
    return found


def draw_curves(
    pyplot: object, curves: Curves, label: str, path: Path, line_at: float | None = None, scale: str = "linear"
) -> None:
    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(6.4 * columns, 3.6 * rows), squeeze=False)
    for axis, ((title, swept), lines) in zip(axes.flat, curves.items()):
        floor_styles = itertools.cycle(("--.", ":.", "-."))
        for name, points in sorted(lines.items()):
            is_floor = name.startswith(FLOORS)
            sizes = sorted(points)
            axis.plot(
                sizes,
                [points[size] for size in sizes],
                next(floor_styles) if is_floor else "-o",
                markersize=4,
                label=name,
                color="gray" if is_floor else None,
            )
        if line_at is not None:
            axis.axhline(line_at, color="black", linewidth=0.8)
        axis.set(title=title, xlabel=swept, ylabel=label, yscale=scale)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))  # beside the curves
    for axis in list(axes.flat)[len(curves) :]:
        axis.remove()
    save(pyplot, figure, path)


def draw_errors(pyplot: object, found: Dict[str, List[float]], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(7, 0.6 * len(found) + 1.6))
    for place, tensor in enumerate(sorted(found)):
        values = found[tensor]
        spread = [place + 0.6 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
        axis.plot(values, spread, ".", markersize=4, alpha=0.6)
    axis.axvline(0.5, color="black", linewidth=0.8, label="a single rounding: 0.5")
    axis.set_yticks(range(len(found)), sorted(found))
    axis.set(xlabel="largest error of a case, ULPs (fp8 caches: codes)")
    axis.set_xlim(left=0)
    axis.legend(fontsize=7)
    save(pyplot, figure, path)


def save(pyplot: object, figure: object, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(path)


def load_pyplot() -> object:
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed: python3 -m pip install matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "results", nargs="+", metavar="RESULTS", help="result documents (JSON); later ones add to earlier"
    )
    parser.add_argument("--out", metavar="DIR", default=".", help="where the PNGs go (default: here)")
    options = parser.parse_args()
    try:
        results, folder = read_results(options.results), Path(options.out)
    except BadDocument as error:
        fail(str(error))
    pyplot = load_pyplot()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    drawings = [
        ("throughput.png", throughput(results), lambda data, path: draw_curves(pyplot, data, "GB/s", path)),
        (
            "peers.png",
            ratios(results),
            lambda data, path: draw_curves(pyplot, data, "time / kvrope's", path, 1, "log"),
        ),
        ("growth.png", growth(results), lambda data, path: draw_curves(pyplot, data, "us", path, scale="log")),
        ("error.png", errors(results), lambda data, path: draw_errors(pyplot, data, path)),
    ]
    for name, data, draw in drawings:
        if data:
            draw(data, folder / name)
        else:
            why = f", which needs {LEAST_POINTS} sizes of a cache" if name != "error.png" else ""
            print(f"plot: nothing to draw in {name}{why}", file=sys.stderr)
    if not any(data for _, data, _ in drawings):
        fail("the documents hold nothing to draw")
    return 0


if __name__ == "__main__":
    sys.exit(main())
