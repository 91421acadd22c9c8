"""tools/bench_peers.py: case files, bytes, result format, absent peers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runner import ROOT, SHAPES, regress, runner

sys.path.insert(0, str(ROOT / "tools"))
from bench.peer_call import Call  # noqa: E402
from bench.peer_cases import Case, read_cases  # noqa: E402
from bench.peer import Absent, Unsupported  # noqa: E402
from bench.peers import Flashinfer, SameSignature, Sglang, Vllm, load_file, make_peers  # noqa: E402
from bench.timed_calls import plan_calls  # noqa: E402


def peers(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "bench_peers.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)


def case(**keys: object) -> Case:
    return Case("case", "cases.json", {"num_tokens": 9, "q_heads": 4, "kv_heads": 2, "head_dim": 64, **keys})


# --- Case files


def run_bench(out: Path, *arguments: object) -> dict:
    """Results of the runner's bench by name."""
    command = ("bench", SHAPES / "bench.json", "--device", "cpu", "--l2", "warm", "--json", out)
    result = regress(*command, *arguments, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    return {result["name"]: result for result in json.loads(out.read_text())["results"]}


@pytest.fixture(scope="module")
def measured_by_runner(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Result of each shipped case of 64 tokens, by name."""
    out = tmp_path_factory.mktemp("bench") / "out.json"
    return run_bench(out, "--rounds", 10, "--filter", "*num_tokens=64")


def test_names_are_those_of_the_runner(measured_by_runner: dict) -> None:
    cases = read_cases(str(SHAPES / "bench.json"))
    assert [c.name for c in cases if c.name.endswith("num_tokens=64")] == list(measured_by_runner)


def test_layers_and_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "defaults": {
                    "q_heads": 16,
                    "table": {"base": 5e5, "rows": 512},
                    "slots": {"pattern": "random"},
                },
                "sweep": {"num_tokens": [7, 8]},
                "cases": [
                    {
                        "id": "a",
                        "table": {"rows": 1024},
                        "sweep": {"style": ["neox", "gptj"], "table.base": [1e4]},
                    }
                ],
            }
        )
    )
    cases = read_cases(str(path))
    assert [c.name for c in cases] == [
        f"a/num_tokens={t}/style={style}/table.base=10000.0" for t in (7, 8) for style in ("neox", "gptj")
    ]
    assert (
        cases[0].get("table", {}) == {"base": 1e4, "rows": 1024}
        and cases[0].get("slots.pattern", "") == "random"
    )


@pytest.mark.parametrize(
    "keys, unsupported",
    [
        ({}, ""),
        ({"layout": "x_split", "kv_cache_dtype": "fp8_e4m3", "scales": {"k": 2, "v": 0.5}}, ""),
        ({"norm": {"q": True, "plus_one": False}, "mrope": {"section": [8, 12, 12]}}, ""),
        ({"q_out_dtype": "fp8_e4m3", "scales": {"q": 2}, "mrope": {"interleaved": True}}, ""),
        ({"norm": {"weight_dtype": "fp16"}}, 'norm.weight_dtype = "fp16"'),
        ({"scales": {"q": [1, 2]}}, "scales.q = [1, 2]"),
        ({"match_unfused": True}, "match_unfused"),
        ({"dtype": "fp32"}, 'dtype = "fp32"'),
        ({"slots": {"padding": 0.5, "pattern": "blocks"}}, "slots.padding"),
        ({"positions": {"offsets": {"value": 3}}}, "positions.offsets"),
        ({"num_tokens": True}, "num_tokens = true"),
        ({"outputs": {"zeros_out": True}}, "outputs.zeros_out = true"),
    ],
)
def test_unsupported_keys_are_named(keys: dict, unsupported: str) -> None:
    assert case(**keys).unsupported() == unsupported


# --- Bytes and groups of calls


def test_bytes_are_those_of_the_runner(measured_by_runner: dict) -> None:
    compared = 0
    for c in read_cases(str(SHAPES / "bench.json")):
        if c.name not in measured_by_runner or c.unsupported():
            continue
        described = Call(c, "cpu").bytes().describe()
        if c.get("positions.pattern", "") == "random":  # equal positions are drawn differently
            described.pop("indices"), described.pop("all")
        assert described.items() <= measured_by_runner[c.name]["bytes"].items(), c.name
        compared += 1
    assert compared > 10


def test_bytes_of_extensions_are_those_of_the_runner(tmp_path: Path) -> None:
    """Of one token, which takes a row of the table on each axis, wherever it is."""
    measured = run_bench(tmp_path / "out.json", "--rounds", 10, "--filter", "variant/*num_tokens=1")
    cases = [c for c in read_cases(str(SHAPES / "bench.json")) if c.name in measured]
    assert {"norm", "mrope", "fp8-queries"} <= {tag for c in cases for tag in c.tags}
    for c in cases:
        assert c.unsupported() == ""
        assert Call(c, "cpu").bytes().describe() == measured[c.name]["bytes"], c.name


def test_table_bytes_are_those_of_each_axis() -> None:
    call = Call(case(mrope={"section": [2, 10, 20]}), "cpu")
    call.positions = torch.tensor([[5] * 9, [0, 1, 2] * 3, list(range(9))])
    rows = 1 * 2 + 3 * 10 + 9 * 20  # rows of the table, by the frequencies that are taken of each
    assert call.bytes().indices == rows * 2 * 4 + 9 * 8 + 27 * 8


def test_groups_are_those_of_the_runner() -> None:
    mega = 1_000_000
    assert plan_calls("warm", mega, mega, 10**12) == (1, 20)
    assert plan_calls("flushed", mega, mega, 3 * mega) == (3, 3)
    assert plan_calls("rotating", 7 * mega, 14 * mega, 10**12) == (86, 86)
    assert plan_calls("rotating", 440 * mega, 880 * mega, 10**12) == (2, 20)


# --- Peers


def test_absent_peers_have_a_reason() -> None:
    found, absent = make_peers(None, None)
    measured = {"kvrope", "kvrope rope + cache", "torch eager", "torch compiled"}
    assert measured <= {peer.name for peer in found}
    assert absent["triton"] == "no --seed-kernel is given"
    with pytest.raises(Absent, match="^/absent.py is no file$"):
        load_file("triton", "/absent.py")
    with pytest.raises(Absent, match="has no attribute 'fused_qk_rope_reshape_and_cache'"):
        load_file("triton", str(ROOT / "tools" / "plot.py"))


@pytest.mark.parametrize(
    "keys, reason",
    [
        ({"norm": {"k": False}}, "norms of q and k"),
        ({"mrope": {"section": [8, 12, 12]}}, "positions of three axes"),
        ({"q_out_dtype": "fp8_e4m3", "scales": {"q": 0.5}}, "fp8 queries"),
    ],
)
@pytest.mark.parametrize("peer", [SameSignature, Sglang, Flashinfer, Vllm])
def test_others_refuse_extensions(peer: type, keys: dict, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        peer.__new__(peer).bind(Call(case(**keys), "cpu"))  # without its package


# --- The command


def test_command_writes_the_result_format(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def fused_qk_rope_reshape_and_cache(*arguments): raise ValueError('not today')\n")
    cases, out = tmp_path / "cases.json", tmp_path / "out.json"
    cases.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "cases": [
                    {"id": "one", "num_tokens": 1, "tags": ["warm", "flushed"]},
                    {"id": "normed", "num_tokens": 1, "norm": {}},
                    {"id": "in-place", "num_tokens": 1, "inputs": {"in_place": True}},
                ],
            }
        )
    )
    result = peers(
        cases,
        "--device",
        "cpu",
        "--rounds",
        3,
        "--seed-kernel",
        kernel,
        "--json",
        out,
        "--peers",
        "kvrope,kvrope rope + cache,triton,torch eager,sglang",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    assert "skipped in-place: not supported here: inputs.in_place" in result.stdout
    assert "absent: flashinfer: not among --peers" in result.stderr
    document = json.loads(out.read_text())
    warm = document["results"][0]
    assert (warm["name"], warm["l2"], warm["num_tokens"]) == ("one", "warm", 1)
    assert (
        set(warm["times"]) == {"kvrope", "kvrope rope + cache", "torch eager", "memcpy"}
        and len(warm["times"]["kvrope"]["rounds"]) == 3
    )
    assert set(warm["ratios"]) == {"kvrope rope + cache", "torch eager", "memcpy"}
    assert warm["absent"]["triton"] == "ValueError: not today"
    normed = next(result for result in document["results"] if result["name"] == "normed")
    assert "kvrope rope + cache" in normed["times"]
    assert normed["absent"]["triton"] == "has no call for norms of q and k"
    assert warm["host"]["add_"] > 0 and warm["host_microseconds"] == warm["host"]["kvrope"]
    compared = regress("compare", out, out)
    assert compared.returncode == 0 and " one, warm, kvrope: " in compared.stdout, compared.stderr


def test_command_on_cuda(tmp_path: Path, cuda: str) -> None:
    cases, out = tmp_path / "cases.json", tmp_path / "out.json"
    one = {
        "id": "one",
        "num_tokens": 5,
        "q_heads": 8,
        "kv_heads": 2,
        "head_dim": 128,
        "tags": ["warm", "flushed", "rotating"],
    }
    cases.write_text(json.dumps({"schema_version": 1, "cases": [one]}))
    floors = runner().parent / "tools/bench/libkvrope_floors.so"
    result = peers(cases, "--device", cuda, "--rounds", 3, "--json", out, "--floors", floors)
    assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads(out.read_text())["results"]
    assert [result["l2"] for result in results] == ["warm", "flushed", "rotating"]
    ours = {name + pdl for name in ("kvrope", "kvrope rope + cache") for pdl in ("", " without PDL")}
    expected = {*ours, "torch eager", "torch compiled", "copy", "memcpy", "chain"}
    for result in results:
        assert expected <= set(result["times"]), result["absent"]
        assert all(0 < value["microseconds"] < 10000 for value in result["times"].values())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--l2", "cold"], "--l2: expected some of warm, flushed, rotating, got cold"),
        (["--filter", "nothing"], "0 cases matched"),
        (["--rounds", "0"], "--rounds: expected a positive number"),
        (["--peers", "torch eager"], "kvrope: not among --peers"),
        (["--json", "/absent/out.json"], "/absent/out.json: cannot be written"),
    ],
)
def test_usage_errors(arguments: list, message: str) -> None:
    result = peers(SHAPES / "bench.json", "--device", "cpu", *arguments)
    assert result.returncode == 2 and message in result.stderr


def test_absent_file() -> None:
    result = peers("/absent.json", "--device", "cpu")
    assert result.returncode == 2 and "/absent.json" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_device() -> None:
    result = peers(SHAPES / "bench.json", "--device", "cuda")
    assert result.returncode == 3 and "no CUDA device is there" in result.stderr
