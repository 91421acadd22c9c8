#!/usr/bin/env bash
# Checks kvrope on a machine with a GPU, with the active python3 (torch, pybind11, pytest, hypothesis) and no network.
# Builds into build-gpu/ for the GPUs that are there and leaves the environment as it is.
#   tools/gpu_check.sh STAGE...
#     build      configure, compile, install into build-gpu/site
#     test       ctest, pytest, the quick shape regression on the GPU
#     sanitize   memcheck, racecheck, initcheck, synccheck, side by side, over the GoogleTests, quick.json and edges.json;
#                memcheck over the tests of numbers that fit nothing
#     fuzz       100 000 random cases, half of them invalid, against the oracle
#     bench      kvrope-regress bench and tools/bench_peers.py over tests/shapes/bench.json, with their plots
#     growth     the time over the sizes of tests/shapes/growth.json, its plot, and no cliff in it but x-split's known ones
#     ncu        what Nsight Compute counts for five cases of bench.json: bytes written, sectors a request, bandwidth
#     host       what the steps of one call cost the host (tools/bench/host_time.py)
#     verdicts   at T >= 1024 a planted slowdown of 10 % is SLOW, and the unchanged build is neither SLOW nor FAST
#   KVROPE_CMAKE_ARGS        more CMake arguments
#   KVROPE_BENCH_ARGS        more options of bench_peers.py, such as --seed-kernel PATH
#   KVROPE_BENCH_OUT         folder of the results and plots of the stages bench, growth, ncu and host (build-gpu/bench)
#   KVROPE_FUZZ_SEED         seed of the fuzz stage (0)
#   KVROPE_VERDICT_REPEATS   of each kind in the verdicts stage (20)
#   KVROPE_SANITIZE_TESTS    GoogleTest filter of the sanitize stage
#   KVROPE_SANITIZE_TAG      tag of the regression cases of the sanitize stage
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit
build=$PWD/build-gpu
export PYTHONPATH=$build/site${PYTHONPATH:+:$PYTHONPATH}
PATH=$PATH:/usr/local/cuda/bin

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$PWD/tools/gpu_check.sh" >&2
  exit 2
}

say() { printf '== %s\n' "$*"; }

stage_build() {
  local architectures extra
  architectures=$(sed 's/\.//; s/$/-real/' <<<"$capabilities" | sort -u | paste -sd ';')
  mapfile -d '' extra < <(xargs -r printf '%s\0' <<<"${KVROPE_CMAKE_ARGS-}")
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVROPE_CUDA=ON \
    "-DKVROPE_CUDA_ARCHITECTURES=$architectures" -DKVROPE_BUILD_TESTS=ON -DKVROPE_BUILD_TOOLS=ON \
    "-DPython_EXECUTABLE=$(command -v python3)" "${extra[@]}" &&
    cmake --build "$build" --parallel "$(nproc)" &&
    cmake --install "$build" --prefix "$build/site/kvrope" >/dev/null &&
    (cd / && python3 -c 'import kvrope; print("kvrope", kvrope.__version__, kvrope.__file__)')
}

stage_test() {
  local status=0
  tools/run_tests.sh "$build" python3 || status=1
  "$build/kvrope-regress" run tests/shapes/quick.json --device cuda || status=1
  return $status
}

stage_sanitize() {
  local tool job status=0 jobs=()
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1  # each tensor is an allocation of its own, so that strays are seen
  for tool in memcheck racecheck initcheck synccheck; do
    sanitize_with $tool & jobs+=($!)
  done
  # Numbers that fit nothing, over views of larger tensors.
  label=pytest sanitize_program memcheck python3 -m pytest -q -k cuda \
    tests/python/test_{foreign_memory,field_faults}.py || status=1
  for job in "${jobs[@]}"; do
    wait "$job" || status=1
  done
  return $status
}

sanitize_with() {  # TOOL
  local status=0
  local tests=("$build/kvrope_tests" "--gtest_filter=${KVROPE_SANITIZE_TESTS:-*CUDA*:*Cuda*:*cuda*-BenchCuda.*}" --gtest_brief=1)
  local cases=("$build/kvrope-regress" run tests/shapes/quick.json --device cuda)
  [[ -z ${KVROPE_SANITIZE_TAG-} ]] || cases+=(--tag "$KVROPE_SANITIZE_TAG")
  sanitize_program "$1" "${tests[@]}" || status=1
  sanitize_program "$1" "${cases[@]}" || status=1
  # Tables that end with their memory, odd alignments, sizes that are no power of two.
  label=edges sanitize_program "$1" "$build/kvrope-regress" run tests/shapes/edges.json --device cuda || status=1
  return $status
}

sanitize_program() {  # TOOL PROGRAM ARGS..., called $label where the program's name does not say enough
  local tool=$1 name log start=$SECONDS result="nothing found"
  shift
  name="$tool ${label:-$(basename "$1")}"
  log="$build/${name/ /-}.log"
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$@" >"$log" 2>&1 || result="FAILED with exit status $?"
  # A tool that did not start, or a filter that nothing matched, is no clean bill.
  grep -Eq 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" || result="FAILED: no clean summary"
  grep -Eq '[1-9][0-9]* (passed|tests?)\b' "$log" || result="FAILED: nothing passed"
  say "$name: $result ($((SECONDS - start)) s): $(grep -E 'SUMMARY|PASSED|[0-9] passed' "$log" | tr -s '\n=' ' ')"
  [[ $result == nothing* ]] || { tail -n 40 "$log"; return 1; }
}

stage_fuzz() {
  "$build/kvrope-regress" fuzz --device cuda --cases 100000 --seed "${KVROPE_FUZZ_SEED:-0}"
}

stage_bench() {
  local options status=0 folder=${KVROPE_BENCH_OUT:-$build/bench}
  mkdir -p "$folder" || return
  mapfile -d '' options < <(xargs -r printf '%s\0' <<<"${KVROPE_BENCH_ARGS-}")
  "$build/kvrope-regress" bench tests/shapes/bench.json --device cuda --pdl both --json "$folder/bench.json" || status=1
  # Not the variants: torch.compile takes seconds a case.
  python3 tools/bench_peers.py tests/shapes/bench.json --device cuda --tag decode,prefill,scattered \
    --floors "$build/tools/bench/libkvrope_floors.so" --json "$folder/peers.json" "${options[@]}" || status=1
  "$build/kvrope-regress" run tests/shapes/quick.json --device cuda --json "$folder/run.json" >/dev/null || status=1
  python3 tools/plot.py "$folder/peers.json" "$folder/run.json" --out "$folder" || status=1
  return $status
}

stage_growth() {
  local status=0 folder=${KVROPE_BENCH_OUT:-$build/bench}
  mkdir -p "$folder" || return
  "$build/kvrope-regress" bench tests/shapes/growth.json --device cuda --json "$folder/growth.json" || status=1
  python3 tools/plot.py "$folder/growth.json" --out "$folder" || status=1
  python3 tools/cliffs.py "$folder/growth.json" --filter 'flash-*' || status=1
  python3 tools/cliffs.py "$folder/growth.json" --filter 'x-split-*' --limit 1.75 || status=1  # README: tiles from 257 rows on
  return $status
}

# The caches are flushed before each of the passes in which ncu repeats a launch: cold, as rows of the benchmark that
# rotate or flush. Clocks stay as they are.
stage_ncu() {
  local case file files=() folder=${KVROPE_BENCH_OUT:-$build/bench}/ncu
  local sure=(gpu__time_duration.sum dram__bytes_{read,write}.sum dram__throughput.avg.pct_of_peak_sustained_elapsed
    l1tex__t_{sectors,requests}_pipe_lsu_mem_global_op_{st,ld}.sum lts__t_{sectors,requests}_op_{write,read}.sum
    sm__warps_active.avg.pct_of_peak_sustained_active launch__{registers_per_thread,grid_size,block_size})
  local more=(lts__t_{sectors,requests}_srcunit_tex_op_{write,read}.sum)  # without what moves between halves of the L2
  command -v ncu >/dev/null || { say "ncu is not installed"; return 1; }
  mkdir -p "$folder" || return
  for case in flash-{bf16,fp8}/prefill/num_tokens=4096 x-split-bf16/{prefill,scattered}/num_tokens=4096 \
    flash-bf16/decode/num_tokens=64; do
    file=$folder/${case//[\/=]/-}.csv
    profile_case "$case" "$file" "${sure[@]}" "${more[@]}" || profile_case "$case" "$file" "${sure[@]}" ||
      tail -n 3 "${file%.csv}.log"
    files+=("$case=$file")
  done
  python3 tools/ncu_table.py --bytes tools/results/h200_bench.json --json "$folder.json" "${files[@]}"
}

profile_case() {  # CASE FILE METRICS...; fails if no launch was counted
  local case=$1 file=$2
  shift 2
  rm -f "$file"
  ncu --csv --page raw --print-units base --log-file "$file" --cache-control all --clock-control none \
    --kernel-name regex:rope_cache_kernel --launch-count 1 --metrics "$(IFS=,; echo "$*")" \
    "$build/kvrope-regress" run tests/shapes/bench.json --device cuda --filter "$case" >"${file%.csv}.log" 2>&1
  grep -Eqs '^"?0"?,' "$file"
}

stage_host() {
  local folder=${KVROPE_BENCH_OUT:-$build/bench} library=$build/tools/bench/libkvrope_host_time.so
  mkdir -p "$folder" || return
  python3 tools/bench/host_time.py --library "$library" --json "$folder/host.json" &&
    python3 tools/bench/host_time.py --library "$library" --inference-mode --json "$folder/host_inference.json"
}

stage_verdicts() {
  local i baseline wrong=0 repeats=${KVROPE_VERDICT_REPEATS:-20}
  local command=("$build/kvrope-regress" bench tests/shapes/bench.json --device cuda --filter 'flash-bf16/prefill/num_tokens=[14]0[29][46]')
  baseline=$build/verdicts.json
  "${command[@]}" --json "$baseline" >/dev/null || return
  for ((i = 0; i < repeats; ++i)); do
    "${command[@]}" --baseline "$baseline" --plant-slowdown 0.1 | grep -E '^(FAST|SAME|UNSURE) ' && wrong=1
    "${command[@]}" --baseline "$baseline" | grep -E '^(FAST|SLOW) ' && wrong=1
  done
  say "verdicts: $repeats planted and $repeats unchanged runs, $( ((wrong)) && echo "WRONG ones are above" || echo "all right")"
  return $wrong
}

(($#)) || usage
for stage in "$@"; do
  declare -F "stage_$stage" >/dev/null || { echo "gpu_check: unknown stage: $stage" >&2; usage; }
done
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)
[[ $capabilities == [0-9]* ]] || {
  echo "gpu_check: this machine has no usable NVIDIA GPU (nvidia-smi lists none)" >&2
  exit 3
}

[[ $1 == build || -x $build/kvrope-regress ]] || set -- build "$@"
summary=() failed=0
for stage in "$@"; do
  say "$stage"
  start=$SECONDS result=passed
  "stage_$stage" || { result=FAILED failed=1; }
  summary+=("$stage: $result, $((SECONDS - start)) s")
  [[ $stage$result != buildFAILED ]] || break
done
printf '== %s\n' "${summary[@]}"
exit $failed
