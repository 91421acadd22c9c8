"""Caches, rows, tables, index arrays whose element offsets pass 2^31; more rows than a launch axis has.

On the CPU only the pages that are touched take memory; on CUDA all of it does: what does not fit is skipped.
"""

import math
from typing import Any

import kvrope
import pytest
import torch

from cases import Call, Case, build, check_recorded_fault, verify
from elements import bits_of
from oracle import expect
from tensors import CANARY, packed_strides

FAR = 2**31 + 64  # elements


def memory(num_bytes: int, device: str) -> torch.Tensor:
    """Bytes that hold nothing in particular."""
    if device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if free < num_bytes + 2**30:
            pytest.skip(f"{num_bytes / 2**30:.0f} GiB of GPU memory are needed, {free / 2**30:.0f} are free")
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    except RuntimeError:
        pytest.skip(f"{num_bytes / 2**30:.0f} GiB of address space are needed")


def far_view(like: torch.Tensor, axis: int, fill: bool, stride: int = FAR) -> torch.Tensor:
    """The same shape with the indices of one axis that far apart, filled with the canary or with `like`."""
    order = [axis, *(i for i in range(like.dim()) if i != axis)]
    strides = packed_strides(like.shape, order)
    strides[axis] = stride
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, strides, strict=True))
    whole = memory((extent + 64) * like.dtype.itemsize, like.device.type).view(like.dtype)
    view = whole.as_strided(like.shape, strides, 0)
    view.view(torch.uint8).fill_(CANARY) if fill and like.dtype.itemsize == 1 else view.copy_(like)
    return view


def check_same_bits(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape, name
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.dtype.itemsize]
    assert torch.equal(got.contiguous().view(integer), expected.contiguous().view(integer)), name


def check_equal_calls(far: Call, near: Call) -> None:
    """Bit-equal results and caches. `near` is held to the oracle."""
    results = far.run()
    for result, want in zip(results, verify(near.copy()).run(), strict=True):
        check_same_bits("result", result, want)
    near.run()
    for name in ("key_cache", "value_cache"):
        check_same_bits(name, far.arguments[name], near.arguments[name])
    if far.device.type == "cuda":
        check_recorded_fault(far.device, [])


SMALL = dict(
    num_tokens=4, num_blocks=2, block_size=4, kv_heads=2, q_heads=4, head_size=8, slots=[7, 0, -1, 5]
)


@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize("layout, axis", [
    *(("flash", axis) for axis in range(4)), *(("x_split", axis) for axis in range(5)),
    *(("shuffled", axis) for axis in range(5)),
])  # fmt: skip
def test_cache_with_an_axis_of_far_strides(device: str, layout: str, axis: int, name: str) -> None:
    """Each stride in turn passes 2^31 elements: of blocks, heads, offsets, dims, both parts of a split."""
    case = Case(device, layout=layout, cache_dtype=torch.float8_e4m3fn, x=2, k_scale=0.5, **SMALL)
    near = build(case)
    far = near.copy()
    cache = near.arguments[name]
    axis = min(axis, cache.dim() - 1)
    if (cache.shape[axis] - 1) * FAR > 2**33:  # dims far apart: two are enough
        near = build(Case(device, layout=layout, cache_dtype=torch.float8_e4m3fn, x=1, k_scale=0.5,
                          **{**SMALL, "head_size": 2}))  # fmt: skip
        far, cache = near.copy(), near.arguments[name]
    far.arguments[name] = far_view(cache, axis, fill=True)
    check_equal_calls(far, near)


ROWS = [("q_out", 0), *((name, axis) for name in ("q", "k", "v", "k_out", "zeros_out") for axis in range(3))]


@pytest.mark.parametrize("name, axis", ROWS)
def test_rows_with_an_axis_of_far_strides(device: str, name: str, axis: int) -> None:
    case = dict(num_tokens=2, q_heads=2, kv_heads=2, head_size=2, slots=[5, 9], zeros_out="contiguous")
    near = build(Case(device, q_out="contiguous", k_out="contiguous", **case))
    far = near.copy()
    far.arguments[name] = far_view(near.arguments[name], axis, fill=False)
    check_equal_calls(far, near)


@pytest.mark.parametrize("name, axis, stride", [
    ("pos", 0, FAR), ("pos", 1, FAR), ("pos", 0, 2**30 + 5), ("q_scale", 0, FAR), ("q_out", 0, FAR),
])  # fmt: skip
def test_axes_of_positions_and_fp8_queries_of_far_strides(
    device: str, name: str, axis: int, stride: int
) -> None:
    """A stride of 2^30 fits in 31 bits; the third axis then begins past them."""
    case = Case(device, num_tokens=2, table_rows=4, pos=[[0, 1], [2, 3], [1, 0]], pos_dtype=torch.int32,
                mrope_section=(7, 12, 13), q_out_dtype=torch.float8_e4m3fn, q_scale=[0.5, 3.0])  # fmt: skip
    near = build(case)
    far = near.copy()
    far.arguments[name] = far_view(near.arguments[name], axis, False, stride)
    check_equal_calls(far, near)


@pytest.mark.parametrize("name", ["cos_sin", "pos", "offs", "slot_mapping", "swa_slot_mapping", "k_scale"])
def test_tables_and_indices_of_far_strides(device: str, name: str) -> None:
    case = Case(device, num_tokens=2, table_rows=2, pos=[3, -1], offs=[-3, 2], slots=[1, 0], swa=[7, 9],
                pos_dtype=torch.int32, offs_dtype=torch.int32, slot_dtype=torch.int32, k_scale=[0.5, 3.0],
                table_dtype=torch.bfloat16)  # fmt: skip
    near = build(case)
    far = near.copy()
    far.arguments[name] = far_view(near.arguments[name], 0, fill=False)
    check_equal_calls(far, near)


def test_table_columns_of_far_strides(device: str) -> None:
    near = build(Case(device, head_size=2, table_rows=3, pos=[0, 1, 2, 1, 0], table_dtype=torch.bfloat16))
    far = near.copy()
    far.arguments["cos_sin"] = far_view(near.arguments["cos_sin"], 1, fill=False)
    check_equal_calls(far, near)


@pytest.mark.parametrize("layout", ["flash", "hnd", "packed_pages", "x_split", "shuffled"])
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
def test_cache_of_more_than_2_31_elements(device: str, fp8: bool, layout: str) -> None:
    """K and V of 2^20 + 4 blocks of 2048 elements. The rows go to the first and the last four blocks."""
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    blocks, block_size, edge = 2**20 + 4, 16, 4 * 16
    case = dict(layout=layout, cache_dtype=dtype, k_scale=0.5, v_scale=2.0, num_tokens=8)
    slots = [0, edge + edge - 1, 3, edge, 1, edge + 17, -1, edge - 1]  # of the two edges side by side
    near = build(Case(device, num_blocks=8, slots=slots, **case))
    jump = (blocks - 8) * block_size
    far = near.copy()
    far.arguments["slot_mapping"] = torch.tensor(
        [slot + jump if slot >= edge else slot for slot in slots], device=device
    )
    shapes = {name: (blocks, *near.arguments[name].shape[1:]) for name in ("key_cache", "value_cache")}
    one = math.prod(shapes["key_cache"])
    assert one > 2**31
    whole = memory(2 * one * dtype.itemsize, device).view(dtype)
    if device == "cuda":  # on the CPU every page would become real
        whole.view(torch.uint8).fill_(CANARY)
    for i, name in enumerate(shapes):
        cache = near.arguments[name]
        strides = list(cache.stride())
        if layout == "packed_pages":
            offset = cache.storage_offset() - near.arguments["key_cache"].storage_offset()
        else:
            offset = i * one
        view = whole.as_strided(shapes[name], strides, offset)
        for part in (view[:5], view[-5:]):  # one block more than is written
            part.view(torch.uint8).fill_(CANARY)
        far.arguments[name] = view
    verify(near.copy())
    near.run()
    far.run()
    for name in shapes:
        got, want = far.arguments[name], near.arguments[name]
        check_same_bits(name, torch.cat((got[:4].view(torch.uint8), got[-4:].view(torch.uint8))),
                        want.view(torch.uint8))  # fmt: skip
        middle = (
            got[4:-4]
            if device == "cuda"
            else torch.cat((got[4:5].view(torch.uint8), got[-5:-4].view(torch.uint8)))
        )
        assert all((blocks == CANARY).all() for blocks in middle.view(torch.uint8).split(2**16)), name


@pytest.mark.parametrize("window", [False, True], ids=["slots", "window"])
def test_slots_past_2_31(device: str, window: bool) -> None:
    """2^31 + 8 blocks of one slot: numbers that a 32-bit reader takes for negative or for small ones."""
    num_slots = 2**31 + 8
    key_cache, value_cache = (
        memory(2 * num_slots, device).view(torch.float8_e4m3fn).view(num_slots, 1, 1, 2) for _ in range(2)
    )
    slots = [num_slots - 1, 5, 2**31, -1, 2**31 - 1, 2**31 + 5]
    case = dict(num_tokens=6, q_heads=2, kv_heads=1, head_size=2, cache_dtype=torch.float8_e4m3fn)
    near = build(Case(device, block_size=1, num_blocks=8, slots=[0, 1, 2, -1, 3, 4], **case))
    far = near.copy(key_cache=key_cache, value_cache=value_cache)
    numbers = torch.tensor(slots, device=device)
    live = [slot for slot in slots if slot >= 0]
    for cache in (key_cache, value_cache):
        for slot in live:
            cache[slot - 1 : slot + 2].view(torch.uint8).fill_(CANARY)
    if window:
        far.arguments.update(slot_mapping=torch.arange(6, device=device), swa_slot_mapping=numbers)
    else:
        far.arguments["slot_mapping"] = numbers
    for result, want in zip(far.run()[:2], near.run()[:2], strict=True):
        check_same_bits("result", result, want)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        for i, slot in enumerate(live):
            check_same_bits(name, cache[slot], near.arguments[name][i])
        untouched = [
            slot for base in live for slot in (base - 1, base + 1) if slot not in live and slot < num_slots
        ]
        assert all((cache[slot].view(torch.uint8) == CANARY).all() for slot in untouched)
    check_one_fault(far, window, num_slots)


def check_one_fault(call: Call, window: bool, value: int) -> None:
    name = "swa_slot_mapping" if window else "slot_mapping"
    call.arguments[name] = call.arguments[name].clone()
    call.arguments[name][3] = value
    if call.device.type == "cpu":
        with pytest.raises(IndexError, match=rf"{name}.*\b{value}\b"):
            call.run()
        return
    call.run()
    fault = kvrope.last_fault(call.device)
    assert (fault.argument, fault.row, fault.value) == (name, 3, value)
    with pytest.raises(IndexError):
        kvrope.check(call.device)


def rows_of(call: Call, first: int, last: int) -> Call:
    """The call for some of its rows alone, on copies of the caches."""
    cut: dict[str, Any] = {
        name: call.arguments[name][first:last] for name in ("q", "k", "v", "pos", "slot_mapping")
    }
    caches = {name: call.arguments[name].clone() for name in ("key_cache", "value_cache")}
    return Call({**call.arguments, **cut, **caches, "q_out": None, "k_out": None})


def check_rows(call: Call, results: Any, ranges: list[tuple[int, int]]) -> None:
    for first, last in ranges:
        part = rows_of(call, first, last)
        slots = part.arguments["slot_mapping"]
        block, offset = slots // 16, slots % 16
        stored = {name: call.arguments[name][block, offset].clone() for name in ("key_cache", "value_cache")}
        q_out, k_out, key_cache, value_cache = part.run()
        check_same_bits("q_out", results[0][first:last], q_out)
        check_same_bits("k_out", results[1][first:last], k_out)
        check_same_bits("key_cache", stored["key_cache"], key_cache[block, offset])
        check_same_bits("value_cache", stored["value_cache"], value_cache[block, offset])


@pytest.mark.parametrize("num_tokens", [2**17, 2**17 + 1])
def test_many_rows_of_several_heads(device: str, num_tokens: int) -> None:
    """Rows here and there are those of calls of their own, which smaller tests hold to the oracle."""
    generator = torch.Generator().manual_seed(1)
    rows = [
        torch.randn(num_tokens, heads, 32, generator=generator).to(device, torch.bfloat16)
        for heads in (4, 2, 2)
    ]
    slots = torch.randperm(num_tokens, generator=generator).to(device)
    call = build(Case(device, q_heads=4, head_size=32, num_tokens=1))
    caches = {name: torch.zeros(-(-num_tokens // 16), 16, 2, 32, dtype=torch.bfloat16, device=device)
              for name in ("key_cache", "value_cache")}  # fmt: skip
    call.arguments.update(caches, q=rows[0], k=rows[1], v=rows[2], slot_mapping=slots,
                          pos=torch.randint(256, (num_tokens,), generator=generator).to(device))  # fmt: skip
    results = call.run()
    check_rows(call, results, [(0, 64), (65530, 65600), (num_tokens - 65, num_tokens)])


def test_rows_of_more_than_2_31_elements(cuda: str) -> None:
    """q of 2^19 + 3 rows of 32 heads of 128: contiguous rows whose offsets pass 2^31 elements."""
    num_tokens = 2**19 + 3
    row_bytes = 2 * (2 * 32 + 2 * 2 * 2) * 128
    del_me = memory(int(1.2 * num_tokens * row_bytes), cuda)
    del del_me
    torch.cuda.empty_cache()
    rows = [torch.randn(num_tokens, heads, 128, dtype=torch.bfloat16, device=cuda) for heads in (32, 2, 2)]
    assert rows[0].numel() > 2**31
    call = build(Case(cuda, q_heads=32, head_size=128, num_tokens=1))
    caches = {name: torch.zeros(-(-num_tokens // 16), 16, 2, 128, dtype=torch.bfloat16, device=cuda)
              for name in ("key_cache", "value_cache")}  # fmt: skip
    slots = torch.randperm(num_tokens, device=cuda)
    call.arguments.update(caches, q=rows[0], k=rows[1], v=rows[2], slot_mapping=slots,
                          pos=torch.randint(256, (num_tokens,), device=cuda))  # fmt: skip
    results = call.run()
    check_rows(call, results, [(0, 64), (2**19 - 64, 2**19), (num_tokens - 65, num_tokens)])


def test_a_million_rows(cuda: str) -> None:
    """T = 2^20 + 1 against the oracle of the last rows; slots run backwards."""
    num_tokens = 2**20 + 1
    call = build(Case(cuda, q_heads=1, kv_heads=1, head_size=16, num_tokens=num_tokens, block_size=64,
                      num_blocks=-(-num_tokens // 64), slots=range(num_tokens - 1, -1, -1),
                      q_out="contiguous"))  # fmt: skip
    before = {name: tensor.clone() for name, tensor in call.tensors().items()}
    results = call.run()
    last = slice(num_tokens - 300, num_tokens)
    tail = Call({**call.arguments, **before, "q_out": None})
    tail.arguments.update(
        {name: tail.arguments[name][last] for name in ("q", "k", "v", "pos", "slot_mapping")}
    )
    assert not expect(tail.arguments).faults
    want = verify(tail).run()
    assert (bits_of(results[0][last]) == bits_of(want[0])).all()
    assert (bits_of(results[1][last]) == bits_of(want[1])).all()
    assert not results[0].isnan().any() and not results[1].isnan().any()
