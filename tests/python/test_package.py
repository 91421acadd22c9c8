"""The installed package: imported from anywhere, found by CMake from outside the tree, no torch behind the kernels."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kvrope

DOWNSTREAM = Path(__file__).parents[1] / "downstream"
PACKAGE = Path(kvrope.__file__).parent

CONFIGURE = ("cmake", "-G", "Ninja") if shutil.which("ninja") else ("cmake",)

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
needs_cuda_build = pytest.mark.skipif(not kvrope.has_cuda, reason="kvrope is built without CUDA")


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)


def succeed(*command, **options) -> str:
    result = run(*command, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_imports_from_any_folder(tmp_path):
    script = "import kvrope; print(kvrope.__version__, kvrope.__file__)"
    version, location = succeed(sys.executable, "-c", script, cwd=tmp_path).split(maxsplit=1)
    assert version == kvrope.__version__
    assert Path(location.strip()) == Path(kvrope.__file__)


def test_layout_of_the_package():
    files = ["py.typed", "lib/libkvrope_cache_ops.so", "lib/libkvrope_torch.so", "lib/libkvrope_kernels.a"]
    files += [f"include/kvrope/{name}.h" for name in ("arguments", "cos_sin_table", "fault", "kernels/rope_cache")]
    files += ["lib/cmake/kvrope/kvropeConfig.cmake", "lib/cmake/kvrope/kvropeConfigVersion.cmake"]
    assert [name for name in files if not (PACKAGE / name).is_file()] == []
    assert list(PACKAGE.glob("_C*.so"))


@needs_cmake
def test_cache_ops_from_a_cpp_program(tmp_path):
    prefixes = f"{kvrope.cmake_prefix_path};{torch.utils.cmake_prefix_path}"
    succeed(*CONFIGURE, "-S", DOWNSTREAM / "cache_ops", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefixes}")
    succeed("cmake", "--build", tmp_path)
    expected = ["cpu: passed"] + ["cuda:0: passed"] * (kvrope.has_cuda and torch.cuda.is_available())
    assert succeed(tmp_path / "use_cache_ops", cwd="/").splitlines() == expected


@needs_cmake
@needs_cuda_build
def test_kernels_from_a_cpp_program_without_torch(tmp_path):
    config = PACKAGE / "lib/cmake/kvrope"
    succeed(*CONFIGURE, "-S", DOWNSTREAM / "kernels", "-B", tmp_path, f"-Dkvrope_DIR={config}")
    succeed("cmake", "--build", tmp_path)
    expected = "cuda: passed\n" if torch.cuda.is_available() else "no rows: passed\n"
    assert succeed(tmp_path / "use_kernels", cwd="/") == expected
    assert "Torch_DIR" not in (tmp_path / "CMakeCache.txt").read_text()

    with_torch = run("cmake", "--build", tmp_path, "--target", "use_torch")
    assert with_torch.returncode != 0
    assert "torch/torch.h: No such file" in with_torch.stdout + with_torch.stderr


@needs_cmake
def test_a_missing_json_library_is_named(tmp_path):
    folder = Path(__file__).parents[2] / "tools" / "cmake"
    project = "cmake_minimum_required(VERSION 3.25)\nproject(probe LANGUAGES NONE)\n"
    (tmp_path / "CMakeLists.txt").write_text(f"{project}include({folder}/KvropeJson.cmake)\n")
    without = "-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON"
    result = run(*CONFIGURE, "-S", tmp_path, "-B", tmp_path / "build", without)
    assert result.returncode != 0
    message = " ".join(result.stderr.split())
    assert "kvrope needs nlohmann/json 3.9 or newer" in message
    assert "nlohmann-json3-dev" in message and "-Dnlohmann_json_DIR=" in message


@pytest.fixture(scope="module")
def kernel_compilations() -> list:
    """(file, command line) of each source in kernels/, as the build folder recorded them."""
    build = os.environ.get("KVROPE_BUILD_DIR")
    if build is None:
        pytest.skip("KVROPE_BUILD_DIR, which tools/test sets, names no build folder")
    commands = json.loads((Path(build) / "compile_commands.json").read_text())
    kernels = [(Path(entry["file"]), entry) for entry in commands if Path(entry["file"]).parts[-2] in KERNEL_FOLDERS]
    assert kernels
    return kernels


KERNEL_FOLDERS = ("kernels", "instantiations")


def include_folders(command: str) -> list:
    words = shlex.split(command)
    attached = [word[2:] for word in words if word.startswith("-I")]
    separate = [words[i + 1] for i, word in enumerate(words) if word in ("-isystem", "-I", "-include")]
    return [Path(folder.removeprefix("=")) for folder in attached + separate if folder]


def test_no_torch_on_the_include_path_of_the_kernels(kernel_compilations):
    for file, entry in kernel_compilations:
        folders = include_folders(entry["command"])
        assert file.parent in folders or file.parent.parent in folders
        assert [folder for folder in folders if (folder / "torch").exists() or (folder / "ATen").exists()] == [], file


@pytest.mark.parametrize("header, compiles", [("rope_cache_params.h", True), ("torch/torch.h", False)])
def test_a_torch_header_does_not_compile_in_kernels(kernel_compilations, tmp_path, header, compiles):
    file, entry = next(item for item in kernel_compilations if item[0].name == "launch_plan.cpp")
    source = tmp_path / "probe.cpp"
    source.write_text(f"#include <{header}>\n")
    words = [str(source) if word == str(file) else word for word in shlex.split(entry["command"])]
    words[words.index("-o") + 1] = str(tmp_path / "probe.o")
    result = run(*words, cwd=entry["directory"])
    assert (result.returncode == 0) == compiles, result.stderr
    assert compiles or f"{header}: No such file" in result.stderr
