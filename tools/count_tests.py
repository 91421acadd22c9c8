"""count_tests.py REPORT.xml...: one line of counts for each JUnit report, with the reasons of what was skipped.

Fails when a report is missing or empty, as after a crash.
"""

import sys
import xml.etree.ElementTree as tree
from collections import Counter
from pathlib import Path


def count(report: Path) -> str:
    cases = list(tree.parse(report).iter("testcase")) if report.exists() else []
    if not cases:
        raise LookupError(f"{report.stem}: FAILED, it left no report of any test")
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skips = [case.find("skipped") for case in cases]
    # GoogleTest's message is "file:line\nreason", pytest's is the reason.
    reasons = Counter(skip.get("message", "").strip().rpartition("\n")[2] for skip in skips if skip is not None)
    skipped = sum(reasons.values())
    line = f"{report.stem}: {len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped"
    return line + "".join(f"\n  skipped {number}: {reason}" for reason, number in reasons.most_common())


if __name__ == "__main__":
    status = 0
    for argument in sys.argv[1:]:
        try:
            print(count(Path(argument)))
        except LookupError as error:
            print(error)
            status = 1
    sys.exit(status)
