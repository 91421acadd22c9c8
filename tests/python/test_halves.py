"""rope and reshape_and_cache: each against the oracle, both together against the fused call, to the bit."""

import itertools
from typing import Any

import kvrope
import pytest
import torch

from cases import Call, Case, build, verify
from elements import bits_of
from halves import rope_call, rope_of, run_halves, write_call, write_of
from tensors import LAYOUTS

FP8 = torch.float8_e4m3fn
INT, HALF, FLOAT = torch.int64, torch.float16, torch.float32
ROTATIONS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "one row": dict(num_tokens=1),
    "no rows": dict(num_tokens=0),
    "kv only": dict(num_kv_rows=9),
    "kv only alone": dict(num_tokens=0, num_kv_rows=3),
    "partial": dict(is_neox=False, rotary_dim=32, rotary_dim_offset=7, extremes=True),
    "full width": dict(full_width=True, dtype=HALF, table_dtype=torch.bfloat16),
    "fp32": dict(dtype=torch.float32, extremes=True, head_size=46),
    "in place": dict(q_out="in_place", k_out="in_place", strides="fused_qkv"),
    "offsets": dict(offs=[3, -1, 0, 2, -9], pos=[9, 1, 30, 2, 9], pos_dtype=torch.int32),
    "transposed outputs": dict(q_out="transposed", k_out="dim_stride_2"),  # no view as (T, QH * D)
    "padded inputs": dict(strides="odd_padded", q_out="padded", is_neox=False),
    "many rows": dict(num_tokens=300, q_heads=3, kv_heads=1),
}  # fmt: skip


@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
@pytest.mark.parametrize("what", ROTATIONS, ids=lambda what: what.replace(" ", "_"))
def test_rope(device: str, what: str, has_k: bool) -> None:
    verify(rope_call(Case(device, **ROTATIONS[what]), has_k))


SCALES = dict(k_scale=[0.3, 3.0], v_scale=0.7)
WRITES: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "one row": dict(num_tokens=1),
    "no rows": dict(num_tokens=0),
    "no slots": dict(slots=[]),
    "fewer slots": dict(num_slots=3, extremes=True),
    "padding": dict(slots=[3, -1, 20, -(2**40), 127]),
    "window": dict(slots=[3, -1, 20, 4], swa=[-1, 7, 9, 40, -1] + [90] * 20),
    "scaled": dict(**SCALES, extremes=True),
    "scaled fp32": dict(**SCALES, dtype=torch.float32, extremes=True),
    "scaled fp8": dict(**SCALES, dtype=HALF, cache_dtype=FP8, extremes=True),
    "ignored scales": dict(**SCALES, apply_scale=False),
    "bytes": dict(k_scale=0.1, cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2", dtype=FLOAT),
    "strided": dict(strides="odd_padded", v_head_size=33, page_padding=3, index_stride=2),
    "many rows": dict(num_tokens=300, **SCALES, cache_dtype=FP8, q_heads=2),
}  # fmt: skip


@pytest.mark.parametrize("layout", ["flash", "packed_heads", "x_split", "shuffled"])
@pytest.mark.parametrize("what", WRITES, ids=lambda what: what.replace(" ", "_"))
def test_reshape_and_cache(device: str, what: str, layout: str) -> None:
    verify(write_call(Case(device, layout=layout, **WRITES[what])))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (bits_of(a).reshape(-1) == bits_of(b).reshape(-1)).all()


PAIRS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "padded": dict(slots=[3, -1, 20, -5, 127], num_kv_rows=7, num_tokens=4),
    "window": dict(swa=list(range(127, -1, -1)), num_kv_rows=8, num_slots=7, rotary_dim=32, is_neox=False),
    "in place": dict(q_out="in_place", k_out="in_place", strides="fused_qkv"),
    "many rows": dict(num_tokens=300, q_heads=2, v_head_size=46),
}


@pytest.mark.parametrize("cache_dtype", [None, FP8], ids=["own", "fp8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", PAIRS, ids=lambda what: what.replace(" ", "_"))
def test_halves_are_the_fused_call(device: str, what: str, layout: str, cache_dtype: Any) -> None:
    """Every bit of outputs and caches, the neighbours in their storages included: the switch is not seen."""
    for dtype, scales in itertools.product((torch.bfloat16, torch.float16, torch.float32), ({}, SCALES)):
        options = {**scales, **PAIRS[what]}
        case = Case(device, layout=layout, dtype=dtype, cache_dtype=cache_dtype, extremes=True, **options)
        fused = build(case)
        halves = fused.copy()
        expected = fused.run(
            lambda **arguments: kvrope.fused_qk_rope_reshape_and_cache(**arguments, match_unfused=True)
        )
        for got, want in zip(run_halves(halves), expected, strict=True):
            assert same_bits(got, want), (dtype, scales)


@pytest.mark.parametrize("what", sorted({*ROTATIONS, *WRITES}), ids=lambda what: what.replace(" ", "_"))
def test_same_bits_as_the_cpu(cuda: str, what: str) -> None:
    calls = []
    if what in ROTATIONS:
        calls += [rope_call(Case(cuda, **ROTATIONS[what]), has_k) for has_k in (True, False)]
    if what in WRITES:
        calls += [write_call(Case(cuda, layout=layout, **WRITES[what])) for layout in LAYOUTS]
    for call in calls:
        on_cpu = call.copy(device="cpu")
        for got, want in zip(call.run() or (), on_cpu.run() or (), strict=True):
            assert (got is want is None) or same_bits(got, want)
        for name, tensor in call.tensors().items():
            assert same_bits(tensor, on_cpu.arguments[name]), name


# --- Slots and positions out of range: errors on the CPU, faults on CUDA.


@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
@pytest.mark.parametrize("position", [256, -1, 2**31, 2**63 - 1])
def test_position_out_of_range(device: str, position: int, has_k: bool) -> None:
    verify(rope_call(Case(device, pos=[0, 1, position, 2, 3], num_kv_rows=7), has_k))
    verify(rope_call(Case(device, pos=[0, 1, 2, 2, 3], offs=[0, 0, min(position, 2**62), 0, 0]), has_k))
    many = [5] * 300
    many[277] = position
    verify(rope_call(Case(device, num_tokens=300, pos=many, q_heads=2), has_k))


def test_rope_knows_no_padding(device: str) -> None:
    """A position that the fused call forgives in a padding row is out of range here."""
    fused = build(Case(device, pos=[0, 1, 999, 2, 3], slots=[3, 17, -1, 0, 64]))
    verify(fused)
    if device == "cpu":
        with pytest.raises(IndexError, match=r"^rope: pos\[2\] is 999, expected 0 to 255"):
            rope_of(fused).run()
    verify(rope_of(fused))


@pytest.mark.parametrize("layout", ["flash", "x_split"])
@pytest.mark.parametrize("rows", [5, 300])
def test_slot_out_of_range(device: str, rows: int, layout: str) -> None:
    slots = list(range(rows))
    capacity = 16 * 20
    case = dict(num_tokens=rows, q_heads=2, num_blocks=20, layout=layout)
    verify(write_call(Case(device, slots=[*slots[:-1], capacity], **case)))
    verify(write_call(Case(device, slots=[capacity + 9, *slots[1:]], swa=range(capacity), **case)))
    verify(write_call(Case(device, slots=slots, swa=[*slots[:-1], capacity], **case)))
    if device == "cpu":
        with pytest.raises(IndexError, match=r"^reshape_and_cache: slot_mapping\[4\] is 400, .* below 320"):
            write_call(Case(device, slots=[1, 2, 3, 4, 400], num_blocks=20)).run()


# --- Errors, by their words.

OUTPUTS = dict(q_out="contiguous", k_out="contiguous")
KNOWN = dict(**OUTPUTS, offs=[0] * 5, pos=[1] * 5, k_scale=0.5, v_scale=[2.0, 1.0])


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


BAD_ROPE: dict[str, tuple[dict[str, Any], str]] = {
    "q of rank 2": (dict(q=zeros(5, 64)), r"q: expected shape \(T, QH, D\), got \(5, 64\)"),
    "q of no dtype": (dict(q=zeros(5, 8, 64, dtype=INT)), "q: expected dtype float16 or .*, got int64"),
    "odd head": (dict(q=zeros(5, 8, 63)), "q: expected an even head size from 2 to 512, got 63"),
    "fewer keys": (dict(k=zeros(4, 2, 64)), "k: expected at least as many rows as q, 5, got 4"),
    "heads": (dict(k=zeros(5, 3, 64)), "k: expected a number of heads that divides the 8 of q, got 3"),
    "k of another dtype": (dict(k=zeros(5, 2, 64, dtype=HALF)), "k: expected dtype bfloat16, got float16"),
    "k_out without k": (dict(k=None), "k_out: expected none, since there is no k, got one"),
    "k_out of another shape": (dict(k_out=zeros(6, 2, 64)), r"k_out: expected shape \(Tk=5, .*, got \(6, 2, 64\)"),
    "joined q_out": (dict(q_out=zeros(5, 512)), r"q_out: expected shape \(T=5, QH=8, D=64\), got \(5, 512\)"),
    "byte q_out": (dict(q_out=zeros(5, 8, 64, dtype=torch.uint8)),
                   "q_out: expected dtype bfloat16 or float8_e4m3fn or float8_e5m2, got uint8"),
    "q_scale": (dict(q_scale=zeros(dtype=FLOAT)), "q_scale: expected none, since q_out is bfloat16.* got one"),
    "q_scale of heads": (dict(q_out=zeros(5, 8, 64, dtype=FP8), q_scale=zeros(8, dtype=FLOAT)),
                         r"q_scale: expected shape \(\), \(1,\) or \(KH=2,\), got \(8,\)"),
    "q_scale without k": (dict(k=None, k_out=None, q_out=zeros(5, 8, 64, dtype=FP8),
                               q_scale=zeros(2, dtype=FLOAT)),
                          r"q_scale: expected shape \(\) or \(1,\), without k, got \(2,\)"),
    "q_scale of halves": (dict(q_out=zeros(5, 8, 64, dtype=FP8), q_scale=zeros(dtype=HALF)),
                          "q_scale: expected dtype float32, got float16"),
    "axes without section": (dict(pos=zeros(3, 5, dtype=INT)), r"pos: expected shape .*T=5.*, got \(3, 5\)"),
    "two axes": (dict(pos=zeros(2, 5, dtype=INT), mrope_section=[7, 12, 13]),
                 r"pos: expected shape .*3, T=5\), got \(2, 5\)"),
    "mrope_section": (dict(mrope_section=[16, 8, 9]),
                      r"mrope_section: expected three sizes .* 32, got \(16, 8, 9\)"),
    "mrope_interleaved": (dict(mrope_interleaved=True),
                          "mrope_interleaved: expected False, since there is no mrope_section, got True"),
    "pos": (dict(pos=zeros(4, dtype=INT)), r"pos: expected shape \(T=5,\), got \(4,\)"),
    "offs": (dict(offs=zeros(5)), "offs: expected dtype int32 or int64, got bfloat16"),
    "table": (dict(cos_sin=zeros(9, 32)), "cos_sin: expected width 64 or 128 for rotary_dim 64 .*, got 32"),
    "rotary_dim": (dict(rotary_dim=65), "rotary_dim: expected an even number from 2 to .* 64, got 65"),
    "offset": (dict(rotary_dim_offset=1), r"rotary_dim_offset: expected 0 to 0 .*, got 1"),
    "q_weight": (dict(q_weight=zeros(63)), r"q_weight: expected shape \(D=64,\), got \(63,\)"),
    "k_weight": (dict(k_weight=zeros(64, dtype=HALF)),
                 "k_weight: expected dtype bfloat16 or float32, got float16"),
    "k_weight without k": (dict(k=None, k_out=None, k_weight=zeros(64)),
                           "k_weight: expected none, since there is no k, got one"),
    "eps": (dict(q_weight=zeros(64), eps=-1.0), "eps: expected a finite number of at least 0, got -1"),
    "weight_plus_one": (dict(weight_plus_one=True),
                        "weight_plus_one: expected False, since there is neither q_weight nor k_weight"),
    "no bool": (dict(is_neox=1), "is_neox: expected True or False, got 1"),
    "no q": (dict(q=None, q_out=None), "q: expected a tensor, got None"),
    "no pos": (dict(pos=[1, 2, 3, 4, 5]), r"pos: expected a tensor, got \[1, 2, 3, 4, 5\]"),
    "no k": (dict(k="k", k_out=None), "k: expected a tensor or None, got 'k'"),
}  # fmt: skip
BAD_WRITE: dict[str, tuple[dict[str, Any], str]] = {
    "k of rank 2": (dict(k=zeros(5, 128)), r"k: expected shape \(Tk, KH, D\), got \(5, 128\)"),
    "k of no dtype": (dict(k=zeros(5, 2, 64, dtype=INT)), "k: expected dtype float16 or .*, got int64"),
    "odd head": (dict(k=zeros(5, 2, 63)), "k: expected an even head size from 2 to 512, got 63"),
    "no heads": (dict(k=zeros(5, 0, 64)), "k: expected 1 to 32767 heads, got 0"),
    "rows of v": (dict(v=zeros(6, 2, 64)), r"v: expected shape \(Tk=5, KH=2, Dv\), got \(6, 2, 64\)"),
    "v of another dtype": (dict(v=zeros(5, 2, 64, dtype=HALF)), "v: expected dtype bfloat16, got float16"),
    "key cache": (dict(key_cache=zeros(8, 16, 3, 64)), "key_cache: expected .*KH=2.*, got .8, 16, 3, 64."),
    "value cache": (dict(value_cache=zeros(8, 16, 2, 32)), "value_cache: expected .*64.*, got .8, 16, 2, 32."),
    "cache dtype": (dict(kv_cache_dtype="int8"), 'kv_cache_dtype: expected "auto", .*, got "int8"'),
    "slots": (dict(slot_mapping=zeros(6, dtype=INT)), "slot_mapping: expected at most .* rows of k, 5, got 6"),
    "window": (dict(swa_slot_mapping=zeros(6)), "swa_slot_mapping: expected dtype int32 .*, got bfloat16"),
    "k_scale": (dict(k_scale=zeros(3, dtype=FLOAT)), r"k_scale: expected shape .* \(KH=2,\), got \(3,\)"),
    "v_scale": (dict(v_scale=zeros(1)), "v_scale: expected dtype float32, got bfloat16"),
    "no bool": (dict(apply_scale="yes"), "apply_scale: expected True or False, got 'yes'"),
    "no layout": (dict(flash_layout=None), "flash_layout: expected True or False, got None"),
    "no tensor": (dict(slot_mapping=[1, 2]), r"slot_mapping: expected a tensor, got \[1, 2\]"),
    "no scale": (dict(k_scale=0.5), "k_scale: expected a tensor or None, got 0.5"),
}  # fmt: skip


def bad_call(call: Call, changes: dict[str, Any]) -> Call:
    made = {name: value(call.device) if callable(value) else value for name, value in changes.items()}
    return Call({**call.arguments, **made}, call.operation)


def bad_calls(device: str) -> list[tuple[Call, str]]:
    rotation, write = rope_call(Case(device, **KNOWN)), write_call(Case(device, **KNOWN))
    return [(bad_call(rotation, changes), f"^rope: {text}") for changes, text in BAD_ROPE.values()] + [
        (bad_call(write, changes), f"^reshape_and_cache: {text}") for changes, text in BAD_WRITE.values()
    ]


@pytest.mark.parametrize("kind", ["real", "meta"])
def test_bad_calls(device: str, kind: str) -> None:
    """Named, on tensors with and without data; nothing is written."""
    for call, text in bad_calls("meta" if kind == "meta" else device):
        before = {} if kind == "meta" else {name: x.clone() for name, x in call.tensors().items()}
        with pytest.raises((ValueError, TypeError), match=text):
            call.run()
        assert all(same_bits(call.arguments[name], x) for name, x in before.items())


def test_more_rows_than_a_launch_takes() -> None:
    call = rope_call(Case("meta", num_tokens=1), has_k=False)
    call.arguments.update(q=call.arguments["q"].expand(2**31, -1, -1), q_out=call.arguments["q"])
    with pytest.raises(ValueError, match="^rope: q: expected at most 2147483647 rows, got 2147483648"):
        call.run()


def test_tensors_of_other_devices_and_memory(device: str) -> None:
    rotation, write = rope_call(Case(device, **KNOWN)), write_call(Case(device, **KNOWN))
    for call, first, names in (
        (rotation, "q", ("k", "pos", "cos_sin", "offs", "q_out", "k_out")),
        (write, "k", ("v", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale")),
    ):
        for name in names:
            moved = bad_call(call, {name: call.arguments[name].to("meta")})
            text = f"^{call.operation}: {name}: expected a tensor on {device}.* like {first}, got meta"
            with pytest.raises(ValueError, match=text):
                moved.run()
    shared = torch.zeros(6, 8, 64, dtype=torch.bfloat16, device=device)
    with pytest.raises(ValueError, match="^rope: q_out: expected memory of its own or exactly that of q"):
        bad_call(rotation, dict(q=shared[1:], q_out=shared[:5])).run()
    cache = write.arguments["key_cache"]
    with pytest.raises(ValueError, match="^reshape_and_cache: key_cache: .* got elements shared with k"):
        bad_call(write, dict(k=cache[0, :5])).run()
    with pytest.raises(ValueError, match="^reshape_and_cache: value_cache: .* shared with key_cache"):
        bad_call(write, dict(value_cache=cache)).run()
