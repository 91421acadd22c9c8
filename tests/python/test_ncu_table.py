"""tools/ncu_table.py on made-up files of ncu."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runner import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import ncu_table  # noqa: E402

COUNTED = {
    "gpu__time_duration.sum": ("ns", "2,000"),
    "dram__bytes_read.sum": ("byte", "3,000,000"),
    "dram__bytes_write.sum": ("Mbyte", "1.5"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "80.4"),
    "lts__t_sectors_op_write.sum": ("sector", "500,000"),
    "lts__t_sectors_srcunit_tex_op_write.sum": ("sector", "250,000"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": ("sector", "300"),
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": ("", "100"),
    "launch__registers_per_thread": ("register/thread", "64"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "n/a"),
}
CASE = "flash-bf16/prefill/num_tokens=4096"
NO_PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access the counters"


def file_of_ncu(path: Path, counted: dict[str, tuple[str, str]], launches: int = 1) -> Path:
    def line(cells: list[str]) -> str:
        return ",".join(f'"{cell}"' for cell in cells)

    name = "void kvrope::rope_cache_kernel<__nv_bfloat16, 8>(T1, kvrope::LaunchPlan)"
    rows = [["ID", "Kernel Name", *counted], ["", "", *(unit for unit, _ in counted.values())]]
    rows += [[str(i), name, *(value for _, value in counted.values())] for i in range(launches)]
    before = ["==PROF== Connected to process 42", '==PROF== Profiling "rope_cache_kernel": 0%....100%']
    path.write_text("\n".join([*before, *map(line, rows), "==PROF== Disconnected from process 42", ""]))
    return path


def printed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "ncu_table.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("launches", [1, 3])
def test_what_is_read(tmp_path: Path, launches: int) -> None:
    counts = ncu_table.parse_csv(file_of_ncu(tmp_path / "a.csv", COUNTED, launches).read_text())
    assert counts["gpu__time_duration.sum"] == 2000 and counts["dram__bytes_write.sum"] == 1.5e6
    assert "sm__warps_active.avg.pct_of_peak_sustained_active" not in counts and "Kernel Name" not in counts


def test_what_is_derived(tmp_path: Path) -> None:
    counts = ncu_table.parse_csv(file_of_ncu(tmp_path / "a.csv", COUNTED).read_text())
    derived = ncu_table.derive(counts, {"rows_written": 4_000_000})
    assert derived == {
        "us": 2,
        "written, MB": 8,
        "written / useful": 2,
        "sectors a store": 3,
        "sectors a load": None,
        "DRAM read, MB": 3,
        "DRAM written, MB": 1.5,
        "DRAM GB/s": 2250,
        "DRAM, % of peak": 80.4,
        "warps, % of full": None,
        "registers": 64,
    }
    del counts["lts__t_sectors_srcunit_tex_op_write.sum"]
    assert ncu_table.derive(counts, {})["written, MB"] == 16
    assert ncu_table.derive({}, {}) == dict.fromkeys(derived)


def test_table(tmp_path: Path) -> None:
    useful = tmp_path / "bench.json"
    useful.write_text(json.dumps({"results": [{"name": CASE, "bytes": {"rows_written": 6_400_000}}]}))
    counted = file_of_ncu(tmp_path / "a.csv", COUNTED)
    result = printed("--bytes", useful, "--json", tmp_path / "out.json", f"{CASE}={counted}")
    assert result.returncode == 0 and not result.stderr, result.stderr
    row = f"| {CASE} | 2.00 | 8.00 | 1.25 | 3.00 |  | 3.00 | 1.50 | 2250 | 80 |  | 64 |"
    assert result.stdout.splitlines()[-1] == row
    assert json.loads((tmp_path / "out.json").read_text())[CASE]["launch__registers_per_thread"] == 64


def test_files_without_a_launch(tmp_path: Path) -> None:
    """Each is told, and the others are shown."""
    refused, empty = tmp_path / "refused.csv", tmp_path / "empty.csv"
    refused.write_text(NO_PERMISSION + "\n")
    file_of_ncu(empty, COUNTED, 0)
    good = file_of_ncu(tmp_path / "a.csv", COUNTED)
    result = printed(f"a={refused}", f"b={empty}", "c=/absent.csv", f"d={good}")
    assert result.returncode == 1 and result.stdout.splitlines()[-1].startswith("| d | 2.00 |")
    assert result.stderr.splitlines() == [
        f"ncu_table: {refused}: {NO_PERMISSION}",
        f"ncu_table: {empty}: no launch in it",
        "ncu_table: /absent.csv: No such file or directory",
    ]
