"""tools/bench_peers.py: case files, checks of wrong results, result format, absent peers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest
import torch
from runner import ROOT, SHAPES, regress, runner

sys.path.insert(0, str(ROOT / "tools"))
from bench.peer_call import Call, Wanted  # noqa: E402
from bench.peer_cases import Case, read_cases  # noqa: E402
from bench.peer import Absent, Peer, Unsupported  # noqa: E402
from bench.peers import Flashinfer, Kvrope, KvropeHalves, SameSignature, Sglang, Vllm  # noqa: E402
from bench.peers import load_file, make_peers  # noqa: E402
from bench.timed_calls import plan_calls  # noqa: E402
from bench.torch_peers import Compiled, Eager  # noqa: E402


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


# --- Calls and their check


LAYOUTS = ("flash_nhd", "flash_hnd", "packed_kv", "x_split", "x_split_shuffle")
VARIANTS = [
    {},
    {"style": "gptj"},
    {"rotary_dim": 32},
    {"rotary_dim": 32, "style": "gptj"},
    {"dtype": "fp16"},
    {"kv_cache_dtype": "fp8_e4m3", "scales": {"k": 0.5, "v": 2}},
    {"slots": {"pattern": "random", "dtype": "int32"}},
]
RANDOM = {"positions": {"pattern": "random"}}
MROPE = {"mrope": {"section": [8, 12, 12]}, **RANDOM}
INTERLEAVED = {"mrope": {"section": [12, 10, 10], "interleaved": True}, **RANDOM}
FP8_QUERIES = {"q_out_dtype": "fp8_e4m3", "scales": {"q": 0.5}}
EVERYTHING = {"norm": {}, **INTERLEAVED, **FP8_QUERIES}
EXTENDED = [
    {"norm": {}},
    {"norm": {"k": False, "weight_dtype": "fp32"}, "rotary_dim": 32},
    {"norm": {"q": False, "plus_one": True, "eps": 0.5}, "style": "gptj", "dtype": "fp16"},
    MROPE,
    {"mrope": {"section": [0, 0, 32]}, "style": "gptj"},
    {"mrope": {"section": [4, 6, 6], "interleaved": True}, "rotary_dim": 32, "positions": {"dtype": "int32"}},
    FP8_QUERIES,
    {"q_out_dtype": "fp8_e5m2", "rotary_dim": 32, "scales": {"q": 3}},
    EVERYTHING,
    {**EVERYTHING, "kv_cache_dtype": "fp8_e4m3", "scales": {"k": 0.5, "v": 2, "q": 0.25}},
]


def complaints(call: Call, peer: Peer, change: Callable[[Call], None] = lambda call: None) -> str:
    """What the check says of a peer; `change` is to the call alone, when what is wanted is settled."""
    wanted = Wanted(call)
    wanted.restore(call)
    change(call)
    peer.bind(call)()
    return "; ".join(wanted.complaints(call, in_place=False, loose=False))


@pytest.mark.parametrize("peer", [Kvrope, KvropeHalves, Eager], ids=lambda peer: peer.name)
@pytest.mark.parametrize("keys", VARIANTS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_results_pass(peer: type, keys: dict, layout: str, device: str) -> None:
    assert complaints(Call(case(layout=layout, **keys), device), peer()) == ""


@pytest.mark.parametrize("peer", [Kvrope, KvropeHalves, Eager], ids=lambda peer: peer.name)
@pytest.mark.parametrize("keys", EXTENDED, ids=str)
def test_right_results_of_extensions_pass(peer: type, keys: dict, device: str) -> None:
    assert complaints(Call(case(**keys), device), peer()) == ""


def test_compiled_extensions_pass(device: str) -> None:
    tokens = 1 if device == "cpu" else 9  # of several, torch 2.11 writes C++ that does not compile
    assert complaints(Call(case(**{**EVERYTHING, "num_tokens": tokens}), device), Compiled()) == ""


def replaced(**values: object) -> Callable[[Call], None]:
    return lambda call: vars(call).update(values)


def with_height_for_width(call: Call) -> None:
    call.positions = call.positions[[0, 2, 1]]


def with_time_alone(call: Call) -> None:
    call.positions = call.positions[0].expand(3, -1).contiguous()


def with_swapped_weights(call: Call) -> None:
    call.q_weight, call.k_weight = call.k_weight, call.q_weight


def with_reciprocal_scale(call: Call) -> None:
    call.q_scale = 1 / call.q_scale


@pytest.mark.parametrize("peer", [Kvrope, KvropeHalves, Eager], ids=lambda peer: peer.name)
@pytest.mark.parametrize(
    "keys, change, tensors",
    [
        (MROPE, with_time_alone, "q_out k_out key_cache"),
        (MROPE, with_height_for_width, "q_out k_out key_cache"),
        (MROPE, replaced(mrope_section=(8, 13, 11)), "q_out k_out key_cache"),
        (MROPE, replaced(mrope_interleaved=True), "q_out k_out key_cache"),
        (INTERLEAVED, with_height_for_width, "q_out k_out key_cache"),
        (INTERLEAVED, replaced(mrope_section=(12, 11, 9)), "q_out k_out key_cache"),
        (INTERLEAVED, replaced(mrope_interleaved=False), "q_out k_out key_cache"),
        (FP8_QUERIES, replaced(q_scale=None), "q_out"),
        (FP8_QUERIES, with_reciprocal_scale, "q_out"),
        ({"norm": {}}, replaced(q_weight=None), "q_out"),
        ({"norm": {}}, replaced(k_weight=None), "k_out key_cache"),
        ({"norm": {}}, with_swapped_weights, "q_out k_out key_cache"),
        ({"norm": {}}, replaced(weight_plus_one=True), "q_out k_out key_cache"),
        ({"norm": {}}, replaced(eps=0.1), "q_out k_out key_cache"),
        ({"norm": {"plus_one": True}}, replaced(weight_plus_one=False), "q_out k_out key_cache"),
        (EVERYTHING, with_time_alone, "q_out k_out key_cache"),
        (EVERYTHING, with_height_for_width, "q_out k_out key_cache"),
        (EVERYTHING, replaced(q_weight=None), "q_out"),
        (EVERYTHING, with_swapped_weights, "q_out k_out key_cache"),
        (EVERYTHING, replaced(q_scale=None), "q_out"),
    ],
)
def test_wrong_extensions_are_found(peer: type, keys: dict, change: Callable, tensors: str) -> None:
    found = complaints(Call(case(**keys), "cpu"), peer(), change)
    assert [part.split(":")[0] for part in found.split("; ")] == tensors.split(), found


@pytest.mark.parametrize("weight", ["q_weight", "k_weight"])
def test_a_weight_of_ones_is_found(weight: str) -> None:
    def change(call: Call) -> None:
        getattr(call, weight).fill_(1)

    out = weight.replace("weight", "out")
    assert f"{out}: " in complaints(Call(case(norm={}), "cpu"), Kvrope(), change)


def test_queries_rounded_twice_are_found() -> None:
    call = Call(case(num_tokens=200, **FP8_QUERIES), "cpu")
    wanted = Wanted(call)
    wanted.restore(call)
    Kvrope().bind(call)()
    call.q_out.copy_((wanted.q_out.to(torch.float8_e5m2)).to(call.q_out_dtype))
    assert "q_out: " in "; ".join(wanted.complaints(call, in_place=False, loose=False))


@pytest.mark.parametrize(
    "keys, reason",
    [
        ({"norm": {"k": False}}, "norms of q and k"),
        (MROPE, "positions of three axes"),
        (FP8_QUERIES, "fp8 queries"),
    ],
)
@pytest.mark.parametrize("peer", [SameSignature, Sglang, Flashinfer, Vllm])
def test_others_refuse_extensions(peer: type, keys: dict, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        peer.__new__(peer).bind(Call(case(**keys), "cpu"))  # without its package


def one_element(tensor: Callable[[Call], torch.Tensor]) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        tensor(call)[3, 1, 5] *= 1.1

    return change


def stray_slot(call: Call) -> None:
    unused = set(range(call.num_blocks * call.block_size)) - set(call.slots.tolist())
    slot = unused.pop()
    call.key_cache[slot // call.block_size, slot % call.block_size] = 0


def swapped_slots(call: Call) -> None:
    call.value_cache[:] = call.value_cache.roll(1, dims=1)


@pytest.mark.parametrize(
    "fault, complaint",
    [
        (one_element(lambda call: call.q_out), "q_out: 1 of "),
        (one_element(lambda call: call.k_out), "k_out: 1 of "),
        (lambda call: call.k_out.fill_(float("nan")), "k_out: 1152 of 1152"),
        (stray_slot, "key_cache: 10 slots have changed, 9 were to"),
        (swapped_slots, "value_cache: "),
    ],
)
def test_wrong_results_are_found(fault: Callable[[Call], None], complaint: str) -> None:
    call = Call(case(), "cpu")
    wanted = Wanted(call)
    wanted.restore(call)
    Kvrope().bind(call)()
    fault(call)
    assert complaint in "; ".join(wanted.complaints(call, in_place=False, loose=False))


def test_a_call_that_does_nothing_is_found() -> None:
    call = Call(case(), "cpu")
    wanted = Wanted(call)
    Kvrope().bind(call)()  # the outputs hold the right values already
    wanted.restore(call)
    assert len(wanted.complaints(call, in_place=False, loose=False)) == 4
    assert len(wanted.complaints(call, in_place=True, loose=False)) == 4


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
