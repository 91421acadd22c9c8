#!/usr/bin/env bash
# run_tests.sh BUILD_FOLDER PYTHON [PYTEST_ARGS...]: ctest and pytest, both always run; fails if either does.
set -uo pipefail
build=$1 python=$2
shift 2
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit
export KVROPE_BUILD_DIR=$build
rm -f "$build/ctest.xml" "$build/pytest.xml"

ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" --output-junit "$build/ctest.xml"
ctest_status=$?
"$python" -m pytest --junit-xml="$build/pytest.xml" "$@"
pytest_status=$?

"$python" - "$build/ctest.xml" "$build/pytest.xml" <<'END'
import sys, xml.etree.ElementTree as tree
for path in sys.argv[1:]:
    suite = next(tree.parse(path).iter("testsuite")).attrib
    total, failed, skipped = (
        sum(int(suite.get(key, 0)) for key in keys)
        for keys in (["tests"], ["failures", "errors"], ["skipped", "disabled"])
    )
    name = path.rsplit("/", 1)[-1].removesuffix(".xml")
    print(f"{name}: {total - failed - skipped} passed, {failed} failed, {skipped} skipped")
    failed or total or sys.exit(f"{name}: no test was found")
END
counts_status=$?
((ctest_status == 0 && pytest_status == 0 && counts_status == 0))
