"""Every Python block of README.md runs as it stands; every test that it names is there."""

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


ONE_PROGRAM = "## For engine authors"  # its blocks go on from each other; all others stand alone, as pasted


def programs() -> dict[str, list[tuple[int, str]]]:
    """(line number, source) of the blocks of each program, which is named by its first line."""
    text = README.read_text() if README.is_file() else ""
    found: dict[str, list[tuple[int, str]]] = {}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
        line = text.count("\n", 0, match.start(1)) + 1
        heading = re.findall(r"^## .*", text[: match.start()], re.M)[-1]
        name = "engine_authors" if heading == ONE_PROGRAM else f"line{line}"
        found.setdefault(name, []).append((line, match[1]))
    return found


PROGRAMS = programs()


def test_readme_has_programs() -> None:
    assert README.is_file(), "README.md is missing"
    assert len(PROGRAMS) > 4 and len(PROGRAMS["engine_authors"]) > 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str) -> None:
    names = {"__name__": "readme"}
    for line, source in PROGRAMS[name]:
        code = compile("\n" * (line - 1) + source, str(README), "exec")  # tracebacks then show README's lines
        exec(code, names)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_checks_itself(name: str) -> None:
    """Each block but definitions says what it expects, and runs without a GPU too."""
    source = "".join(source for _, source in PROGRAMS[name])
    assert source.count("\nassert ") >= len(PROGRAMS[name]) - 1
    assert "cuda" not in source or "is_available" in source


def test_fields_of_transformers_exist() -> None:
    """The column of the engine that is installed, beside the words that are ours."""
    engine = pytest.importorskip("transformers.generation.continuous_batching")
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    paths = [*Path(engine.__file__).parent.glob("*.py"), Path(llama.__file__)]
    sources = "".join(path.read_text() for path in paths)
    rows = [line.split("|") for line in section(ONE_PROGRAM).splitlines() if line.startswith("| ")]
    fields = {field for row in rows[1:] for field in re.findall(r"`(\w+)`", row[4])}
    ours = {"build_cos_sin", "FAMILIES"}
    assert len(fields) > 8
    assert [field for field in fields - ours if not re.search(rf"\b{field}\b", sources)] == []


def test_links_lead_somewhere() -> None:
    text = README.read_text()
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    anchors = {"#" + re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 8
    assert [link for link in links if link not in anchors and not (README.parent / link).is_file()] == []


PROMISES = "## What is promised, and by which test"
TESTS = Path(__file__).parents[1]


def section(heading: str) -> str:
    text = README.read_text() if README.is_file() else ""
    if heading not in text:
        pytest.skip(f"README.md has no section {heading!r}")
    return text.partition(heading)[2].partition("\n## ")[0]


def test_tests_named_in_the_promises_exist() -> None:
    """`test_file.py::test_name`, or several as `test_file.py::{test_a, test_b}`; `Suite.Name` in C++."""
    text = section(PROMISES)
    in_python = [
        (file, name)
        for file, names in re.findall(r"`(test_\w+\.py)::(\w+|\{[^}]*\})`", text)
        for name in re.findall(r"\w+", names)
    ]
    in_cpp = re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", text)
    assert len(in_python) >= 20 and in_cpp
    missing = []
    for file, name in in_python:
        path = TESTS / "python" / file
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(), re.M):
            missing.append(f"{file}::{name}")
    programs = "".join(path.read_text() for path in (TESTS / "cpp").glob("*_test.cpp"))
    for suite, name in in_cpp:
        if not re.search(rf"\bTEST(?:_F|_P)?\({suite}, {name}\)", programs):
            missing.append(f"{suite}.{name}")
    assert missing == []
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if "`" not in row] == [], "a promise without a test"
