#!/usr/bin/env bash
# run_tests.sh BUILD_FOLDER PYTHON [PYTEST_ARGS...]: ctest and pytest, both always run; fails if either does.
set -uo pipefail
build=$1 python=$2
shift 2
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit
export KVROPE_BUILD_DIR=$build
rm -f "$build/gtest.xml" "$build/pytest.xml"

failed=0
ctest --test-dir "$build" --output-on-failure || failed=1
parallel=()
"$python" -c 'import xdist' 2>/dev/null && parallel=(-n "$(($(nproc) < 8 ? $(nproc) : 8))")
"$python" -m pytest "${parallel[@]}" --junit-xml="$build/pytest.xml" "$@" || failed=1
"$python" tools/count_tests.py "$build/gtest.xml" "$build/pytest.xml" || failed=1
exit $failed
