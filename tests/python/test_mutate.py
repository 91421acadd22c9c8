"""tools/mutate, but for its builds: the faults fit the sources as they are; where not, it says so."""

import subprocess
import sys
from pathlib import Path

from runner import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from mutations import MUTATIONS  # noqa: E402


def mutate(*arguments: str, tools: Path = ROOT / "tools") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tools / "mutate"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_text_stands_once_in_its_file() -> None:
    result = mutate("--check")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{len(MUTATIONS)} faults, each with its text once in its file\n"


def test_there_are_faults_for_each_kernel() -> None:
    for reach in ("cpu", "device"):
        faults = {mutation.fault for mutation in MUTATIONS if mutation.reach in (reach, "both")}
        assert len(faults) >= 10, reach
    for mutation in MUTATIONS:
        assert mutation.old != mutation.new and mutation.reach in ("both", "cpu", "device", "gpu")


def test_the_readme_tells_each_fault() -> None:
    readme = (ROOT / "README.md").read_text()
    for mutation in MUTATIONS:
        row = f"| {mutation.fault} | `{Path(mutation.file).name}` |"
        assert mutation.reach == "gpu" or row in readme, row


def test_a_text_that_is_gone_is_told(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("mutate", "mutations.py"):
        (tools / name).write_text((ROOT / "tools" / name).read_text())
    for file in {mutation.file for mutation in MUTATIONS}:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    assert mutate("--check", tools=tools).returncode == 0
    mutation = MUTATIONS[-1]
    source = tmp_path / mutation.file
    text = source.read_text()
    source.write_text(text.replace(mutation.old, ""))
    result = mutate("--check", tools=tools)
    assert result.returncode == 2
    assert f"{mutation.file}: {mutation.old!r} stands there 0 times, not once" in result.stderr
    assert f"({mutation.fault})" in result.stderr
    source.write_text(text + f"// {mutation.old}\n")
    assert "stands there 2 times" in mutate("--check", tools=tools).stderr


def test_an_unknown_fault_is_told() -> None:
    result = mutate("--only", "no such fault")
    assert result.returncode == 2 and "no fault has 'no such fault' in its name" in result.stderr
