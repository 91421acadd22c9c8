"""KVROPE_RECORD: a process's distinct calls become a case file that the runner passes."""

import json
import textwrap
from pathlib import Path

import jsonschema
import pytest

from cuda_calls import CALLS, FAULTS, run_script
from runner import SHAPES, regress

SCHEMA = json.loads((SHAPES / "case_file.schema.json").read_text())


def record(path: Path, script: str) -> str:
    """Runs the script with recording on; its output and warnings."""
    result = run_script(script, KVROPE_RECORD=str(path))
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def cases_in(path: Path) -> list[dict]:
    document = json.loads(path.read_text())
    jsonschema.validate(document, SCHEMA)
    return document["cases"]


def assert_passes(path: Path, device: str = "cpu") -> None:
    result = regress("run", path, "--device", device)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(cases_in(path))} passed, 0 failed, 0 skipped" in result.stdout


EVERY_LAYOUT = """
    from tensors import LAYOUTS
    fp8 = torch.float8_e4m3fn
    for layout in LAYOUTS:
        for options in [
            dict(), dict(cache_dtype=fp8, k_scale=0.5, v_scale=[2.0, 0.1]),
            dict(is_neox=False, page_padding=3),
            dict(strides="fused_qkv", q_out="in_place", k_out="in_place"),
            dict(strides="odd_offset", zeros_out="odd_offset"),
            dict(num_kv_rows=7, num_slots=6, offs=[1, 2, 3, 4, 5], pos=[0, 9, 8, 7, 6]),
            dict(cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2", slot_dtype=torch.int32, index_stride=2),
            dict(swa=list(range(127, -1, -1)), dtype=torch.float16),
            dict(rotary_dim=32, rotary_dim_offset=5, v_head_size=48),
            dict(slots=[3, -1, 17, -1, 0]), dict(num_tokens=0), dict(full_width=True, x=4),
            dict(norm="qk", weight_plus_one=True, eps=0.25), dict(norm="k", weight_dtype=torch.float32, weight_stride=2),
        ]:
            for seed in range(2):
                verify(Case(DEVICE, layout=layout, seed=seed, **options))
        build(Case(DEVICE, layout=layout, slots=[5, 5, 6, 7, 7])).run()
"""


def test_every_layout_once_each(tmp_path: Path, device: str) -> None:
    path = tmp_path / "recorded.json"
    output = record(path, f"DEVICE = {device!r}\n" + textwrap.dedent(EVERY_LAYOUT))
    assert "KVROPE_RECORD" not in output
    cases = cases_in(path)
    assert len(cases) == 6 * 15
    assert len({case["id"] for case in cases}) == len(cases)
    assert_passes(path, device)


AXES_AND_QUERIES = """
    def call(case=Case(DEVICE), axes=None, **arguments):
        made = build(case)
        if axes is not None:
            made.arguments["pos"] = axes.to(DEVICE)
        made.arguments.update(arguments)
        made.run()

    T, fp8 = 5, torch.float8_e4m3fn
    grid = torch.tensor([[7] * T, [7, 7, 8, 8, 9], [7, 8, 7, 8, 7]])
    section = dict(mrope_section=[8, 12, 12])
    call(axes=grid, **section)
    call(axes=grid + 1, **section)  # other values of one pattern
    call(axes=grid.T.contiguous().T, **section)
    call(axes=grid[0].to(DEVICE).expand(3, T), **section)
    call(axes=grid.int(), **section, mrope_interleaved=True)
    call(axes=grid[1], **section)
    call(axes=grid, **section, offs=torch.tensor([3, 1, 4, 1, 5], device=DEVICE))
    wild = torch.tensor([[3, 4, 900, 5, 6], [3, 4, 5, 5, 6], [3, 4, 5, -9, 6]])
    call(Case(DEVICE, slots=[1, 2, -1, -1, 3]), axes=wild, **section)  # padding rows have any
    small_heads = dict(q_heads=2, kv_heads=1, head_size=16)
    many = Case(DEVICE, num_tokens=1500, table_rows=40000, num_blocks=400, **small_heads)
    call(many, axes=torch.randint(300, (3, 1500)), mrope_section=[2, 3, 3])
    scale = torch.tensor([0.3, 3.0], device=DEVICE)
    for q_scale in (None, scale, scale[0], scale[:1]):
        call(q_out=torch.empty(T, 8, 64, dtype=fp8, device=DEVICE), q_scale=q_scale)
    call(Case(DEVICE, k_out="in_place"), q_out=torch.empty(T, 8, 64, dtype=fp8, device=DEVICE))
    e5m2 = torch.empty(T, 8, 64, dtype=torch.float8_e5m2, device=DEVICE)
    call(axes=grid, **section, q_out=e5m2, q_scale=scale)
"""


def test_axes_and_queries(tmp_path: Path, device: str) -> None:
    path = tmp_path / "recorded.json"
    output = record(path, f"DEVICE = {device!r}\n" + textwrap.dedent(AXES_AND_QUERIES))
    assert "KVROPE_RECORD" not in output
    cases = cases_in(path)
    assert [case.get("mrope", {}).get("section") for case in cases] == (
        [[8, 12, 12]] * 7 + [[2, 3, 3]] + [None] * 5 + [[8, 12, 12]]
    )
    positions = [case["positions"] for case in cases]
    assert cases[1]["inputs"]["strides"]["pos"]["strides"] == [1, 3]
    assert "contiguous-pos" in cases[2]["tags"], "of equal axes; those of the case differ"
    assert cases[3]["mrope"]["interleaved"] and positions[3]["dtype"] == "int32"
    assert positions[4]["axes"] == 1 and all("axes" not in positions[i] for i in (0, 1, 2, 3, 5))
    assert positions[5]["values"] == [[7] * 5, [7, 7, 8, 8, 9], [7, 8, 7, 8, 7]]
    assert positions[6]["values"][0][2] == 900 and positions[6]["values"][2][3] == -9
    assert positions[7]["pattern"] == "random"
    assert [case.get("q_out_dtype") for case in cases] == [None] * 8 + ["fp8_e4m3"] * 5 + ["fp8_e5m2"]
    scales = [case.get("scales") for case in cases[8:]]
    assert scales == [None, {"q": [0.25, 0.25]}, {"q": 0.25}, {"q": [0.25]}, None, {"q": [0.25, 0.25]}]
    assert cases[12]["inputs"]["in_place"] and "in-place-in-part" not in cases[12]["tags"]
    assert_passes(path, device)


def test_what_makes_calls_distinct(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = """
        from halves import rope_call, write_call
        for seed in range(20):
            build(Case(seed=seed)).run()  # other values, slots and positions of one pattern
        build(Case(pos=range(3, 8))).run()
        build(Case(pos=range(9, 14))).run()
        build(Case(slots=range(16, 21))).run()
        build(Case(slots=[7, 90, 3, -1, -2])).run()
        build(Case(slots=[90, 7, 3, 4, -1])).run()
        build(Case(slots=[7, -1, 3, 90, 4])).run()
        build(Case(k_scale=0.5)).run()
        build(Case(k_scale=0.25)).run()
        build(Case(k_scale=[0.5, 1.0])).run()
        build(Case(num_tokens=6)).run()
        build(Case(dtype=torch.float16)).run()
        build(Case(q_out="dim_stride_2")).run()
        build(Case(options=dict(match_unfused=True))).run()
        build(Case(offs=[0, 1, 2, 3, 4], pos=[9, 2, 5, 1, 7])).run()
        build(Case(pos_dtype=torch.int32)).run()
        build(Case(slot_dtype=torch.int32)).run()
        rope_call(Case()).run()  # halves are no cases of a file
        write_call(Case()).run()
    """
    record(path, script)
    cases = cases_in(path)
    # Random slots; runs of positions, of slots; padding at the end and scattered; two forms of a scale;
    # sizes and options; offs, dtypes of indices.
    assert len(cases) == 1 + 1 + 1 + 1 + 1 + 2 + 4 + 3
    assert [case.get("match_unfused", False) for case in cases].count(True) == 1
    assert cases[5]["scales"] == {"k": 0.5} and cases[6]["scales"] == {"k": [0.5, 0.5]}
    assert cases[1]["positions"]["start"] == 3
    assert cases[2]["slots"]["values"] == [0, 1, 2, 3, 4], "blocks in use are numbered anew"
    assert_passes(path)


def test_many_rows_are_patterns(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = """
        rows = 1500
        sizes = dict(num_tokens=rows, q_heads=2, kv_heads=1, head_size=16, table_rows=40000)
        runs = [*range(700), *range(800, 800 + rows - 700)]
        blocks = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:100].tolist()
        paged = [blocks[i // 16] * 16 + i % 16 for i in range(rows)]
        tail = [-1] * 20
        for slots in (range(35, 35 + rows), paged, None, [*range(rows - 20), *tail]):
            for pos in (range(rows), runs, None):
                build(Case(**sizes, slots=slots, pos=pos, num_blocks=400)).run()
        swa = [-1] * 500 + list(range(3000))
        build(Case(**sizes, pos=runs, swa=swa, slots=range(400, 400 + rows), num_blocks=400)).run()
    """
    record(path, script)
    cases = cases_in(path)
    assert [case["slots"]["pattern"] for case in cases] == (
        ["sequential"] * 3 + ["blocks"] + ["random"] * 3 + ["sequential"] * 4
    )
    assert [next(iter(case["positions"])) for case in cases[:3]] == ["start", "requests", "pattern"]
    assert cases[0]["slots"]["start"] == 35 % 16
    assert cases[9]["slots"]["padding"] == list(range(1480, 1500))
    assert 0 < cases[-1]["slots"]["swa"]["evicted"] < 0.1
    assert_passes(path)


def test_calls_that_are_refused_are_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = """
        import pytest
        for wrong in (dict(q_heads=7), dict(slots=[0, 1, 128, 2, 3]), dict(pos=[0, 1, 2, 3, 256])):
            with pytest.raises((ValueError, IndexError)):
                build(Case(**wrong)).run()
        build(Case()).run()
    """
    record(path, script)
    assert len(cases_in(path)) == 1


def test_threads(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = """
        import threading
        def work(thread):
            for tokens in range(1, 13):
                build(Case(num_tokens=tokens, head_size=16, seed=thread)).run()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    record(path, script)
    tokens = [case["num_tokens"] for case in cases_in(path)]
    assert sorted(set(tokens)) == list(range(1, 13))
    assert_passes(path)
    assert list(tmp_path.iterdir()) == [path], "nothing else is left in the folder"


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = """
        import subprocess, sys
        work = "from cases import *\\nfor n in range(1, 9): build(Case(num_tokens=n, kv_heads={})).run()"
        workers = [subprocess.Popen([sys.executable, "-c", work.format(heads)]) for heads in (1, 2, 4)]
        assert [worker.wait() for worker in workers] == [0, 0, 0]
    """
    record(path, script)
    seen = {(case["num_tokens"], case["kv_heads"]) for case in cases_in(path)}
    assert seen == {(tokens, heads) for tokens in range(1, 9) for heads in (1, 2, 4)}


def test_a_later_process_adds_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    for tokens in (3, 3, 4):
        record(path, f"build(Case(num_tokens={tokens})).run()")
    assert [case["num_tokens"] for case in cases_in(path)] == [3, 4]


@pytest.mark.parametrize(
    "text",
    [
        '{"schema_version": 1, "defaults": {}, "cases": [{"id": "a"}]}',
        "no json",
        '{"schema_version": 2, "cases": []}',
    ],
)
def test_a_foreign_file_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "precious.json"
    path.write_text(text)
    output = record(path, "for n in range(1, 4): verify(Case(num_tokens=n))")
    assert path.read_text() == text
    assert output.count("holds something else than recorded cases") == 1


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    script = "for n in range(1, 4): verify(Case(num_tokens=n))\nprint('done')"
    output = record(tmp_path / "no" / "folder.json", script)
    assert output.count("KVROPE_RECORD: ") == 1
    assert "folder.json cannot be written, its folder cannot be opened: No such file or directory" in output
    assert "done" in output
    for path in (tmp_path, Path("/dev/full")):  # a folder; a file that never ends
        output = record(path, "verify(Case())")
        assert output.count("KVROPE_RECORD: ") == 1 and "is no regular file and is left as it is" in output


def test_the_file_is_valid_after_every_call(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    script = f"""
        import json
        for tokens in range(1, 9):
            build(Case(num_tokens=tokens)).run()
            assert len(json.load(open({str(path)!r}))["cases"]) == tokens
    """
    record(path, script)


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    script = f"import os\nos.chdir({str(tmp_path)!r})\nbuild(Case()).run()"
    assert run_script(script, KVROPE_RECORD="").returncode == 0
    assert list(tmp_path.iterdir()) == []


# --- CUDA


def test_a_captured_call_is_recorded_by_its_shape(tmp_path: Path, cuda: str) -> None:
    path = tmp_path / "recorded.json"
    script = """
        from cuda_calls import CALLS, captured
        for what in CALLS.values():
            call = build(Case("cuda", **what))
            verify(call, captured(call))  # warmed up, captured, replayed
    """
    record(path, script)
    is_captured = ["captured" in case["tags"] for case in cases_in(path)]
    distinct = len(CALLS) - 1  # a case gives its outputs: "outputs omitted" is "outputs given"
    assert is_captured.count(True) == is_captured.count(False) == distinct
    assert_passes(path, "cuda")


def test_a_capture_of_another_thread_is_not_disturbed(tmp_path: Path, cuda: str) -> None:
    path = tmp_path / "recorded.json"
    script = """
        import threading
        call = build(Case("cuda", q_out="contiguous", k_out="contiguous"))
        other = build(Case("cuda", num_tokens=9))
        other.copy().run()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):  # its default mode forbids other threads what may synchronise
            call.run()
            thread = threading.Thread(target=other.run)
            thread.start()
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
    """
    assert "KVROPE_RECORD" not in record(path, script)
    assert sorted(case["num_tokens"] for case in cases_in(path)) == [5, 9]


def test_a_faulting_call_is_recorded_as_one(tmp_path: Path, cuda: str) -> None:
    path = tmp_path / "recorded.json"
    script = """
        import pytest
        from cuda_calls import FAULTS
        for what in FAULTS.values():
            build(Case("cuda", **what)).run()
            with pytest.raises(IndexError):
                kvrope.check("cuda")
    """
    record(path, script)
    cases = cases_in(path)
    assert len(cases) == len(FAULTS) and all("expect" in case for case in cases)
    assert_passes(path, "cuda")
    assert_passes(path, "cpu")
