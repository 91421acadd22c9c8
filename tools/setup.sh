#!/usr/bin/env bash
# Sets up what building and testing kvrope need, builds it in build/ and installs it into a Python environment: the
# active one if it has torch, else .venv in the project. Prints that environment's python; all else goes to stderr.
#   KVROPE_CMAKE_ARGS            more CMake arguments, for example "-DCLI11_DIR=/opt/cli11/lib/cmake/CLI11"
#   CMAKE_BUILD_PARALLEL_LEVEL   compile jobs; by default one per core and per 2 GiB of free memory
set -euo pipefail
exec 3>&1 1>&2
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
root=$PWD
stamp=build/setup.stamp
cmake_args="${CMAKE_ARGS-} ${KVROPE_CMAKE_ARGS-} -DKVROPE_BUILD_TESTS=ON -DKVROPE_BUILD_TOOLS=ON"

say() { printf 'kvrope: %s\n' "$*"; }
die() { say "$@"; exit 1; }

# --- System packages

as_root() {
  if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

install_packages() {  # Debian names
  say "installing system packages: $*"
  local install=(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
  "${install[@]}" </dev/null || { as_root apt-get update -qq && "${install[@]}" </dev/null; }
}

require_packages() {  # Debian names of what is missing: installs them or says what to do
  (($#)) || return 0
  if command -v apt-get >/dev/null && as_root true 2>/dev/null; then
    install_packages "$@" && return
  fi
  die "missing and not installable from here: $* (Debian's package names).
  Install them, or name copies elsewhere, for example
  KVROPE_CMAKE_ARGS='-DGTest_DIR=... -Dnlohmann_json_DIR=... -DCLI11_DIR=...' (folders with the *Config.cmake files)."
}

require_programs() {
  local missing=()
  command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  require_packages "${missing[@]}"
}

require_libraries() {  # CMake is the judge, with the arguments of the build
  local folder args output
  declare -A package=([GTest]=libgtest-dev [nlohmann_json]=nlohmann-json3-dev [CLI11]=libcli11-dev)
  folder=$(mktemp -d)
  mapfile -d '' args < <(xargs -r printf '%s\0' <<<"$cmake_args")
  output=$(cmake -G Ninja -S tools/cmake/probe -B "$folder" --no-warn-unused-cli "${args[@]}" 2>&1) ||
    { rm -r "$folder"; die "$output"; }
  rm -r "$folder"
  local missing=() name
  for name in $(sed -n 's/^missing: //p' <<<"$output"); do missing+=("${package[$name]}"); done
  require_packages "${missing[@]}"
}

# --- Python

has_torch() { "$1" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; }

takes_packages() {  # pip may install there
  "$1" -c '
import os, sys, sysconfig
managed = sys.prefix == sys.base_prefix and os.path.exists(sysconfig.get_path("stdlib") + "/EXTERNALLY-MANAGED")
sys.exit(managed or not os.access(sysconfig.get_path("platlib"), os.W_OK))'
}

make_venv() {  # arguments go to venv
  local version
  command -v python3 >/dev/null || require_packages python3 python3-venv python3-dev
  version=$(python3 -c 'import sys; print("{}.{}".format(*sys.version_info))')
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "python3 is $version; 3.10 or newer is needed"
  python3 -c 'import ensurepip, venv' 2>/dev/null || require_packages "python$version-venv"
  say "making .venv with python $version"
  python3 -m venv "$@" .venv
}

choose_python() {  # sets python
  local candidate
  for candidate in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" python3; do
    python=$(command -v "$candidate") && has_torch "$python" || continue
    takes_packages "$python" && return
    say "$python has torch but takes no packages: .venv will use its torch and hold the rest"
    [[ -x .venv/bin/python ]] || PATH="$(dirname "$python"):$PATH" make_venv --system-site-packages
    break
  done
  python=$root/.venv/bin/python
  [[ -x $python ]] || make_venv
}

missing_python_packages() {  # lines of tools/requirements.txt
  "$python" -c '
import importlib.metadata, re
for line in open("tools/requirements.txt"):
    requirement = line.partition("#")[0].strip()
    try:
        requirement and importlib.metadata.version(re.match(r"[\w-]+", requirement)[0])
    except importlib.metadata.PackageNotFoundError:
        print(requirement)'
}

install_python_packages() {
  (($#)) || return 0
  say "installing into $python: $*"
  "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip
  "$python" -m pip install --disable-pip-version-check --progress-bar off -q "$@" </dev/null
}

require_python_headers() {
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    require_packages "$("$python" -c 'import sys; print("python{}.{}-dev".format(*sys.version_info))')"
}

# --- Build

fingerprint() {  # of everything that the installed package and the programs in build/ come from, and of the package
  {
    echo "$cmake_args ${CXX-} ${CUDACXX-} $(command -v nvcc) $python"
    "$python" -c '
import importlib.metadata as metadata
print(metadata.version("torch"), metadata.distribution("kvrope").read_text("RECORD"))'
    { git rev-parse HEAD; git status --porcelain | head -c 1; } || true  # kvrope-regress states its commit
    find CMakeLists.txt pyproject.toml kernels cache_ops bindings tests/cpp tests/shapes/*.schema.json tools/*/ \
      -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } 2>/dev/null | sha256sum
}

compile_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

build_and_install() {
  rm -f $stamp
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(compile_jobs)}
  say "building in build/ with $CMAKE_BUILD_PARALLEL_LEVEL jobs (minutes the first time)"
  CMAKE_ARGS=$cmake_args SKBUILD_BUILD_DIR=build \
    "$python" -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps . </dev/null ||
    die "the build failed; its first error stands above"
  kernels=$(cd / && "$python" -c 'import kvrope; print("CPU and CUDA" if kvrope.has_cuda else "CPU alone")')
  fingerprint >$stamp
}

[[ -n $(command -v nvcc) || ! -x /usr/local/cuda/bin/nvcc ]] || PATH=$PATH:/usr/local/cuda/bin
choose_python
mapfile -t packages < <(missing_python_packages)
if ((${#packages[@]} == 0)) && [[ -f $stamp && $(<$stamp) == $(fingerprint) ]]; then
  say "up to date: build/, installed for $python"
else
  require_programs
  require_python_headers
  require_libraries
  install_python_packages "${packages[@]}"
  build_and_install
  say "built in build/, installed for $python; kernels: $kernels"
fi
echo "$python" >&3
