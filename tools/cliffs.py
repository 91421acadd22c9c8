#!/usr/bin/env python3
"""Look for cliffs in the sweeps of result documents: sizes at which the time of a call jumps.

Sizes a < b of a sweep are neighbours if none between them was measured. The step from one to the other is

  up     (time of b / time of a) / max(1, floor of b / floor of a)
  down   (time of a / time of b) / max(1, floor of a / floor of b)

whichever is larger. Time is kvrope's as shipped, floor the copy of the same bytes in the same rounds (on the CPU
memcpy). A step above 1.3 is a cliff. So twice the tokens may take twice as long where the copy does too, and
1.3 x as long where launching is all that the copy takes. Down, where more takes less time, the smaller size is
slow for what it does. A floor that moves the other way excuses nothing.

Exit codes: 1 if there is a cliff or a case that was not measured, 2 if the documents hold no neighbours.
"""

import argparse
import fnmatch
import sys
from typing import Dict, Iterator, List, NamedTuple

from result_document import BadDocument, Sweep, copy_floor, is_measured, read_results, sweeps

LIMIT = 1.3


class Step(NamedTuple):
    sweep: Sweep
    sizes: tuple[int, int]
    times: tuple[float, float]  # microseconds
    floors: tuple[float, float]

    @property
    def excess(self) -> float:
        ours, floor = self.times[1] / self.times[0], self.floors[1] / self.floors[0]
        return max(ours / max(1, floor), 1 / ours / max(1, 1 / floor))

    def __str__(self) -> str:
        (a, b), (time_a, time_b), (floor_a, floor_b) = self.sizes, self.times, self.floors
        return (
            f"{self.sweep}: {a} -> {b}: {self.excess:.2f} x ({time_a:.2f} -> {time_b:.2f} us, "
            f"floor {floor_a:.2f} -> {floor_b:.2f} us)"
        )


def steps_of(sweep: Sweep, results: Dict[int, dict]) -> Iterator[Step]:
    points = []
    for size, result in results.items():
        times = result["times"]
        floor = copy_floor(times)
        if floor:
            points.append((size, times["kvrope"]["microseconds"], times[floor]["microseconds"]))
    for a, b in zip(points, points[1:]):
        yield Step(sweep, *zip(a, b))


def steps(results: List[dict]) -> List[Step]:
    return [step for sweep, sizes in sweeps(results).items() for step in steps_of(sweep, sizes)]


def print_largest(found: List[Step]) -> None:
    """Of each sweep, in the order of the documents."""
    for sweep in dict.fromkeys(step.sweep for step in found):
        print(max((step for step in found if step.sweep == sweep), key=lambda step: step.excess))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="result documents of bench (JSON)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="a larger step is a cliff (default: 1.3)")
    parser.add_argument("--filter", metavar="GLOB", default="*", help="of the cases' names (default: all)")
    options = parser.parse_args()
    try:
        results = [
            result
            for result in read_results(options.results)
            if fnmatch.fnmatch(result["name"], options.filter)
        ]
    except BadDocument as error:
        print(f"cliffs: {error}", file=sys.stderr)
        return 2
    found = steps(results)
    if not found:
        print("cliffs: the documents hold no two sizes to compare", file=sys.stderr)
        return 2
    missing = [result for result in results if not is_measured(result)]
    cliffs = [step for step in found if step.excess > options.limit]
    print("Largest step of each sweep:")
    print_largest(found)
    for result in missing:
        print(f"NOT MEASURED {result['name']}: {result.get('message', '')}")
    for cliff in cliffs:
        print(f"CLIFF {cliff}")
    print(f"{len(found)} steps, {len(cliffs)} cliffs, {len(missing)} cases not measured")
    return int(bool(cliffs or missing))


if __name__ == "__main__":
    sys.exit(main())
