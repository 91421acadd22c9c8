"""mRoPE: each pair of dims takes its angle from one of three positions of its token."""

from typing import Any

import kvrope
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cases import POS_LAYOUTS, Case, build, verify
from elements import bits_of
from halves import rope_call, rope_of, run_halves
from oracle import axis_of
from tensors import LAYOUTS
from test_torch_citizen import check_equal_to_eager, fresh_compiler, step_arguments  # noqa: F401

FP8 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
INTEGERS = [torch.int32, torch.int64]
both_orders = pytest.mark.parametrize("interleaved", [False, True], ids=["contiguous", "interleaved"])
WHOLE, PART = (7, 12, 13), (3, 5, 8)  # of 64 and of 32 rotated dims: no vector ends with a section

CALLS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "one row": dict(num_tokens=1),
    "no rows": dict(num_tokens=0, num_kv_rows=3),
    "kv only rows": dict(num_kv_rows=9, num_slots=8),
    "gptj": dict(is_neox=False),
    "full width": dict(full_width=True),
    "gptj and full width": dict(is_neox=False, full_width=True, table_dtype=torch.float16),
    "partial": dict(rotary_dim=32, rotary_dim_offset=7, is_neox=False),
    "partial and aligned": dict(rotary_dim=32, rotary_dim_offset=8, num_tokens=140),
    "in place": dict(q_out="in_place", k_out="in_place", strides="fused_qkv"),
    "extremes": dict(extremes=True, num_tokens=40),
    "fp8 caches": dict(cache_dtype=FP8, k_scale=[0.3, 3.0], v_scale=0.7),
    "fp8 and norm": dict(q_out_dtype=FP8, q_scale=[0.3, 3.0], norm="qk", cache_dtype=FP8, k_scale=0.5),
    "norm of k": dict(norm="k", weight_plus_one=True, rotary_dim=32, num_tokens=140),
    "padding": dict(slots=[3, -1, 20, -5, 127], zeros_out="contiguous",
                    pos=[[1, 2, 2, 0, 5], [1, 999, 7, 0, 6], [1, 2, 9, -1, 5]]),
    "window and offsets": dict(swa=list(range(127, -1, -1)), offs=[3, -1, 0, 2, -9],
                               pos=[[9, 1, 30, 2, 9], [8, 5, 2, 1, 9], [0, 251, 30, 2, 79]]),
    "odd values": dict(v_head_size=47, num_tokens=300, layout="x_split"),
    "many rows": dict(num_tokens=300, q_heads=2, kv_heads=1),
    "more rows": dict(num_tokens=2500, q_heads=2, kv_heads=1),
}  # fmt: skip
FORGIVEN = ("padding",)  # positions that are out of range in rope


def mrope(device: str, interleaved: bool, **options: Any) -> Case:
    section = PART if options.get("rotary_dim") == 32 else WHOLE
    return Case(device, **{"mrope_section": section, "mrope_interleaved": interleaved, **options})


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (bits_of(a).reshape(-1) == bits_of(b).reshape(-1)).all()


@both_orders
@pytest.mark.parametrize("what", CALLS)
def test_calls(device: str, what: str, interleaved: bool) -> None:
    verify(mrope(device, interleaved, **CALLS[what]))


SECTIONS = [
    (128, (16, 24, 24)), (128, (24, 20, 20)), (128, (64, 0, 0)), (128, (0, 64, 0)), (128, (0, 0, 64)),
    (128, (0, 31, 33)), (128, (63, 0, 1)), (32, (3, 5, 8)), (34, (1, 15, 1)), (2, (0, 1, 0)), (2, (0, 0, 1)),
    (6, (1, 1, 1)), (46, (0, 11, 12)), (80, (13, 14, 13)), (256, (33, 47, 48)), (512, (1, 254, 1)),
]  # fmt: skip


@both_orders
@pytest.mark.parametrize("head_size, section", SECTIONS)
def test_sections(device: str, head_size: int, section: tuple[int, int, int], interleaved: bool) -> None:
    """Ends of sections within vectors and between them, in both styles and widths, few rows and many."""
    sizes = dict(head_size=head_size, mrope_section=section, q_heads=2)
    for is_neox in (True, False):
        verify(mrope(device, interleaved, is_neox=is_neox, **sizes))
        verify(mrope(device, interleaved, is_neox=is_neox, full_width=True, dtype=torch.float32, **sizes))
        if head_size <= 128:
            verify(mrope(device, interleaved, is_neox=is_neox, num_tokens=140, kv_heads=1, **sizes))


@both_orders
@pytest.mark.parametrize("offset", [0, 1, 2, 8, 16, 47, 96])
def test_part_of_a_head(device: str, offset: int, interleaved: bool) -> None:
    part = dict(head_size=128, rotary_dim=32, rotary_dim_offset=offset, kv_heads=1)
    for options in (dict(), dict(is_neox=False), dict(full_width=True, num_tokens=140, q_heads=2)):
        verify(mrope(device, interleaved, **part, **options))


@pytest.mark.parametrize("interleaved, axes", [(False, "0001111222222222"), (True, "0120120120120020")])
def test_axis_of_each_pair(device: str, interleaved: bool, axes: str) -> None:
    """By hand: the table's cosines are its positions, its sines zero, so that a head of ones shows them."""
    section = (3, 4, 9)
    assert "".join(str(axis_of(i, section, interleaved)) for i in range(16)) == axes
    table = torch.cat((torch.arange(8.0)[:, None].expand(8, 16), torch.zeros(8, 16)), dim=1)
    for is_neox in (True, False):
        case = mrope(
            device, interleaved, num_tokens=2, head_size=32, q_heads=1, kv_heads=1, mrope_section=section,
            q=torch.ones(2, 1, 32), table=table, table_rows=8, pos=[[0, 5], [1, 3], [2, 7]], is_neox=is_neox,
        )  # fmt: skip
        first, second = build(case).run()[0].int().tolist()
        pairs = [int(axis) for axis in axes]
        elements = pairs * 2 if is_neox else [axis for axis in pairs for _ in range(2)]
        assert first == elements and second == [(5, 3, 7)[axis] for axis in elements]


@both_orders
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 64, 127, 128, 129, 200, 256, 257, 300, 2048, 2049])
def test_token_counts(device: str, num_tokens: int, interleaved: bool) -> None:
    sizes = dict(num_tokens=num_tokens, q_heads=2, kv_heads=1)
    verify(mrope(device, interleaved, **sizes))
    if num_tokens <= 300:
        verify(mrope(device, interleaved, **sizes, layout="shuffled", cache_dtype=FP8, rotary_dim=32))


@both_orders
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(device: str, dtype: torch.dtype, layout: str, interleaved: bool) -> None:
    verify(mrope(device, interleaved, layout=layout, dtype=dtype, num_tokens=20))
    verify(mrope(device, interleaved, layout=layout, dtype=dtype, cache_dtype=FP8, k_scale=0.5))


@pytest.mark.parametrize("pos_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("pos_layout", POS_LAYOUTS)
@pytest.mark.parametrize("num_tokens", [1, 5, 140])
def test_positions_anywhere_in_memory(
    device: str, num_tokens: int, pos_layout: str, pos_dtype: torch.dtype
) -> None:
    """A (3, T) tensor, the transpose of a (T, 3) one, columns of a longer one, one row expanded."""
    for index_stride in (1, 3)[: 1 + (num_tokens < 9)]:
        where = dict(pos_layout=pos_layout, pos_dtype=pos_dtype, index_stride=index_stride, q_heads=2)
        verify(mrope(device, False, num_tokens=num_tokens, **where))
        verify(mrope(device, True, num_tokens=num_tokens, offs=[0] * num_tokens, offs_dtype=torch.int32, **where))


def test_positions_that_share_memory_or_lie_backwards(device: str) -> None:
    call = build(mrope(device, True))
    pos = torch.tensor([[7], [8], [200]], device=device)
    call.arguments["pos"] = pos.expand(3, 5)
    verify(call)
    call.arguments["pos"] = torch.arange(9, device=device).as_strided((3, 5), (2, 1))  # rows that overlap
    verify(call)


@both_orders
@pytest.mark.parametrize("offs_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("pos_dtype", INTEGERS, ids=str)
def test_offsets_are_added_to_each_axis(
    device: str, pos_dtype: torch.dtype, offs_dtype: torch.dtype, interleaved: bool
) -> None:
    pos = [[5, 6, 7, 8, 9], [250, 0, 7, -3, 1], [0, 1, 2, 3, 4]]
    types = dict(pos_dtype=pos_dtype, offs_dtype=offs_dtype)
    verify(mrope(device, interleaved, pos=pos, offs=[5, 0, -2, 200, 1], index_stride=2, **types))


# --- What it is equal to, to the bit.


@both_orders
@pytest.mark.parametrize("what", ["plain", "partial", "many rows", "kv only rows", "fp8 caches", "fp8 and norm"])
def test_one_axis_and_equal_axes(device: str, what: str, interleaved: bool) -> None:
    """A section and 1-D positions, a section and three equal axes: the call without a section."""
    with_section = build(mrope(device, interleaved, axes=1, **CALLS[what]))
    without = with_section.copy()
    for name in ("mrope_section", "mrope_interleaved"):
        without.arguments.pop(name, None)
    pos = without.arguments["pos"]
    equal = with_section.copy(pos=pos.expand(3, -1))
    calls = [with_section, equal, with_section.copy(pos=torch.stack((pos, pos, pos)))]
    calls += [rope_of(call.copy()) for call in calls]
    expected = {call.operation: call.run() for call in (without.copy(), rope_of(without.copy()))}
    for call in calls:
        for got, want in zip(call.run(), expected[call.operation], strict=True):
            assert same_bits(got, want)
    different = equal.copy(pos=torch.stack((pos, pos, pos.roll(1) + 1)).clamp(max=255))
    assert not same_bits(different.run()[0], expected[different.operation][0])  # the comparison can fail


@both_orders
@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
@pytest.mark.parametrize("what", [what for what in CALLS if what not in FORGIVEN])
def test_rope(device: str, what: str, has_k: bool, interleaved: bool) -> None:
    verify(rope_call(mrope(device, interleaved, **CALLS[what]), has_k))


@both_orders
@pytest.mark.parametrize("what", [what for what in CALLS if what not in FORGIVEN])
def test_match_unfused(device: str, what: str, interleaved: bool) -> None:
    """rope, then reshape_and_cache, give the bits of the fused call."""
    for dtype in DTYPES:
        fused = build(mrope(device, interleaved, **{"dtype": dtype, "k_scale": 0.3, **CALLS[what]}))
        halves = fused.copy()
        expected = fused.run(lambda **a: kvrope.fused_qk_rope_reshape_and_cache(**a, match_unfused=True))
        for got, want in zip(run_halves(halves), expected, strict=False):
            assert same_bits(got, want), dtype


@both_orders
@pytest.mark.parametrize("what", CALLS)
def test_same_bits_as_the_cpu(cuda: str, what: str, interleaved: bool) -> None:
    for dtype in DTYPES:
        fused = build(mrope(cuda, interleaved, dtype=dtype, **CALLS[what]))
        for call in [fused] if what in FORGIVEN else [rope_of(fused.copy()), fused]:
            on_cpu = call.copy(device="cpu")
            for got, want in zip(call.run(), on_cpu.run(), strict=True):
                assert same_bits(got, want), dtype


def test_paths_give_the_same_bits(device: str) -> None:
    """The widest vectors and single elements."""
    for interleaved in (True, False):
        for is_neox in (True, False):
            case = dict(head_size=128, mrope_section=(16, 24, 24), num_tokens=64, is_neox=is_neox)
            fast = build(mrope(device, interleaved, **case))
            slow = build(mrope(device, interleaved, strides="odd_offset", table_offset=65, cache_offset=65,
                               pos_layout="columns", **case))  # fmt: skip
            for got, want in zip(slow.run(), fast.run(), strict=True):
                assert same_bits(got, want)


def test_a_section_of_any_sequence(device: str) -> None:
    expected = build(mrope(device, False)).run()[0]
    for section in (WHOLE, list(WHOLE), torch.Size(WHOLE)):
        call = build(mrope(device, False))
        call.arguments["mrope_section"] = section
        assert same_bits(call.run()[0], expected)


# --- Faults

OUT_OF_RANGE: dict[str, tuple[dict[str, Any], int]] = {  # and the value that the report gives
    "t": (dict(pos=[[0, 1, 256], [1] * 3, [2] * 3]), 256),
    "h": (dict(pos=[[0] * 3, [1, 1, 300], [2] * 3]), 300),
    "w": (dict(pos=[[0] * 3, [1] * 3, [2, 2, -1]]), -1),
    "h and w": (dict(pos=[[0] * 3, [1, 1, -7], [2, 2, 999]]), -7),
    "all": (dict(pos=[[0, 0, 256], [1, 1, 257], [2, 2, 258]]), 256),
    "w by its offset": (dict(pos=[[0] * 3, [1] * 3, [2, 2, 250]], offs=[0, 0, 9]), 259),
    "t by its offset": (dict(pos=[[0] * 3, [1, 1, 9], [2, 2, 90]], offs=[0, 0, -1]), -1),
    "h beyond 32 bits": (dict(pos=[[0] * 3, [1, 1, 2**40], [2, 2, 2**41]]), 2**40),
    "w below 32 bits": (dict(pos=[[0] * 3, [1] * 3, [2, 2, -(2**32) + 5]]), -(2**32) + 5),
}  # fmt: skip


@both_orders
@pytest.mark.parametrize("what", OUT_OF_RANGE, ids=lambda what: what.replace(" ", "_"))
def test_position_out_of_range(device: str, what: str, interleaved: bool) -> None:
    """Any axis, also one that no pair takes: row, and value of the first axis that is out of range."""
    options, value = OUT_OF_RANGE[what]
    outputs = dict(q_out="contiguous", k_out="contiguous", zeros_out="contiguous")
    for section in (WHOLE, (0, 32, 0)):
        case = mrope(device, interleaved, num_tokens=3, mrope_section=section, **options, **outputs)
        for call in (build(case), rope_call(case), rope_call(case, has_k=False)):
            verify(call)
        call = build(case)
        if device == "cpu":
            with pytest.raises(IndexError, match=rf"\bpos\b.*\b2\b.* {value}, expected 0 to 255"):
                call.run()
            continue
        q_out, k_out = call.run()[:2]
        assert q_out[2].isnan().all() and k_out[2].isnan().all() and not q_out[:2].isnan().any()
        assert kvrope.last_fault(device) == ("position_out_of_range", "pos", 2, value)
        with pytest.raises(IndexError, match=rf"\bpos\b.* {value}"):
            kvrope.check(device)


@both_orders
@pytest.mark.parametrize("num_tokens", [140, 300, 2100])
def test_position_out_of_range_among_many(device: str, num_tokens: int, interleaved: bool) -> None:
    for axis in range(3):
        pos = [[row % 256 for row in range(num_tokens)] for _ in range(3)]
        pos[axis][num_tokens - 7] = 256 + axis
        verify(mrope(device, interleaved, num_tokens=num_tokens, pos=pos, q_heads=2, kv_heads=1))


@pytest.mark.parametrize("axis", range(3))
def test_padding_row_out_of_range_becomes_zero_without_fault(device: str, axis: int) -> None:
    pos = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for value in (256, -1, 2**31):
        pos[axis][1] = value
        for padding in (dict(slots=[3, -1, 4]), dict(slots=[3]), dict(slots=[3, 2, 4], swa=[0, 0, -1, 5, 6])):
            q_out, k_out = verify(mrope(device, True, num_tokens=3, pos=pos, **padding)).run()[:2]
            assert not bits_of(q_out)[1].any() and not bits_of(k_out)[1].any()


# --- Compiled


def vision_step(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """What a layer does around the call: three axes, fp8 queries beside a fp8 cache."""
    codes = torch.empty_like(q, dtype=FP8)
    q_out, k_out, *_ = kvrope.fused_qk_rope_reshape_and_cache(
        q * 2, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True,
        output_zeros=False, mrope_section=WHOLE, mrope_interleaved=True, q_out=codes, q_scale=k_scale,
    )  # fmt: skip
    return q_out.float() + 1, k_out * 1


def test_compiled_with_symbolic_token_count(device: str, fresh_compiler: Any) -> None:  # noqa: F811
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(vision_step, fullgraph=True, backend=counter)
    for num_tokens in (5, 2, 9, 64):
        arguments = step_arguments(device, num_tokens)
        arguments[6] = torch.stack((arguments[6], arguments[6].flip(0), arguments[6] // 2))
        for index, dim in ((0, 0), (1, 0), (2, 0), (5, 0), (6, 1)):  # q, k, v, slot_mapping, pos
            torch._dynamo.mark_dynamic(arguments[index], dim)
        check_equal_to_eager(vision_step, compiled, arguments)
    assert counter.frame_count == 1
