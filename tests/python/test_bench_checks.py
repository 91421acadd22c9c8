"""What tools/bench_peers.py measures is checked first: right results pass, planted wrong ones are found."""

import sys
from typing import Callable

import pytest
import torch
from runner import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from bench.peer import Peer  # noqa: E402
from bench.peer_call import Call, Wanted  # noqa: E402
from bench.peer_cases import Case  # noqa: E402
from bench.peers import Kvrope, KvropeHalves  # noqa: E402
from bench.torch_peers import Compiled, Eager  # noqa: E402


def case(**keys: object) -> Case:
    return Case("case", "cases.json", {"num_tokens": 9, "q_heads": 4, "kv_heads": 2, "head_dim": 64, **keys})


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


def test_queries_of_fewer_bits_are_found() -> None:
    call = Call(case(num_tokens=200, **FP8_QUERIES), "cpu")
    wanted = Wanted(call)
    wanted.restore(call)
    Kvrope().bind(call)()
    call.q_out.copy_(wanted.q_out.to(torch.float8_e5m2).to(call.q_out_dtype))
    assert "q_out: " in "; ".join(wanted.complaints(call, in_place=False, loose=False))


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
