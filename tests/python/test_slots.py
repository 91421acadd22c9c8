"""Slots: padding, short mappings, window tables, numbers that fit no cache; untouched bytes are compared."""

import itertools

import pytest
import torch

from cases import Call, Case, build, verify
from elements import bits_at, cache_offsets, decode, storage_bytes
from tensors import LAYOUTS

INTEGERS = [torch.int32, torch.int64]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slot_dtype", INTEGERS, ids=str)
def test_first_and_last_slots(device: str, slot_dtype, layout: str) -> None:
    verify(Case(device, slots=[3, 17, 0, 127, 64], slot_dtype=slot_dtype, layout=layout))


def test_strided_slots(device: str) -> None:
    """Every second element of [3, 90, 17, 91, 0, 92]."""
    call = build(Case(device, num_tokens=3))
    call.arguments["slot_mapping"] = torch.tensor([3, 90, 17, 91, 0, 92], device=device)[::2]
    verify(call)


@pytest.mark.parametrize("num_slots", [0, 1, 3, 7])
def test_mapping_shorter_than_the_batch(device: str, num_slots: int) -> None:
    """All rows are rotated, the mapped ones cached. The neighbours of the mapping name live slots 40..44."""
    call = build(Case(device, num_tokens=8))
    slots = torch.tensor([3, 17, 0, 40, 41, 42, 43, 44], device=device)
    call.arguments["slot_mapping"] = slots[:num_slots]
    verify(call)


@pytest.mark.parametrize("num_slots", [0, 5, 8, 9, 10])
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_kv_only_rows(device: str, layout: str, num_slots: int) -> None:
    """Rows past T are copied to k_out and cached unrotated."""
    verify(Case(device, num_tokens=8, num_kv_rows=10, num_slots=num_slots, layout=layout))


def test_kv_only_rows_without_queries(device: str) -> None:
    verify(Case(device, num_tokens=0, num_kv_rows=4, pos=[]))


def test_kv_only_rows_to_fp8(device: str) -> None:
    verify(
        Case(device, num_tokens=1, num_kv_rows=6, cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=3.0)
    )


NEGATIVE = {
    torch.int64: [5, -1, -16, -9223372036854775808, 127],
    torch.int32: [5, -1, -16, -2147483648, 127],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slot_dtype", INTEGERS, ids=str)
def test_negative_slots_are_padding(device: str, slot_dtype, layout: str) -> None:
    """Neither the last slot, nor the row before the cache; q_out and k_out are complete all the same."""
    verify(Case(device, slots=NEGATIVE[slot_dtype], slot_dtype=slot_dtype, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_rows_are_padding(device: str, layout: str) -> None:
    verify(Case(device, slots=[-1] * 5, layout=layout, output_zeros=True))


def inner_blocks(call: Call) -> Call:
    """The caches become blocks 2..5 of the eight that were built; the others must stay as they are."""
    for name in ("key_cache", "value_cache"):
        call.arguments[name] = call.arguments[name][2:6]
    return call


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slots", [[0, 63, 64, 79, 2**31, 2**40], [0, 63, 2**62, 5, 7, 64], [64] * 6])
def test_slot_beyond_the_cache(device: str, slots: list[int], layout: str) -> None:
    """CPU: IndexError, nothing written. CUDA: row not cached, fault recorded, other rows as ever."""
    verify(inner_blocks(build(Case(device, num_tokens=6, num_blocks=8, slots=slots, layout=layout))))


def test_slot_beyond_the_cache_int32(device: str) -> None:
    slots = [0, 63, 64, 79, 2**31 - 1, 5]
    verify(inner_blocks(build(Case(device, num_tokens=6, slots=slots, slot_dtype=torch.int32))))


@pytest.mark.parametrize("row", range(5))
def test_bad_slot_in_any_row(device: str, row: int) -> None:
    """Also in the last row: nothing may be written before every row is known to be good on the CPU."""
    slots = [3, 17, 0, 127, 64]
    slots[row] = 128
    verify(Case(device, slots=slots, q_out="contiguous", k_out="contiguous", zeros_out="contiguous"))


def test_bad_slot_of_a_kv_only_row(device: str) -> None:
    verify(Case(device, num_tokens=2, num_kv_rows=4, pos=[0, 1], slots=[3, 4, 128, 5]))


def test_bad_slot_with_outputs_in_place(device: str) -> None:
    verify(Case(device, slots=[3, 17, 0, 128, 64], q_out="in_place", k_out="in_place"))


@pytest.mark.parametrize("slot_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("swa_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("index_stride", [1, 2])
def test_window_table(device: str, index_stride: int, swa_dtype, slot_dtype) -> None:
    """Negative before the table, negative behind it, and a short mapping."""
    table = [-1] * 1024
    table[900], table[5], table[1023] = 3, 20, 127
    verify(
        Case(
            device,
            num_tokens=6,
            slots=[900, -1, 5, 7, 1023],
            slot_dtype=slot_dtype,
            swa=table,
            swa_dtype=swa_dtype,
            index_stride=index_stride,
        )  # fmt: skip
    )


WINDOW_FAULTS = {
    "slot at the table's end": dict(slots=[0, 50, 3], swa=list(range(50))),
    "slot far behind": dict(slots=[0, 2**40, 3], swa=list(range(50))),
    "entry at the cache's end": dict(slots=[0, 1, 3], swa=[0, 128, 2, 3]),
    "entry far behind": dict(slots=[0, 1, 3], swa=[0, 2**31 - 1, 2, 3]),
    "empty table": dict(slots=[0, -1, 3], swa=[]),
}


@pytest.mark.parametrize("swa_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("what", WINDOW_FAULTS, ids=lambda what: what.replace(" ", "_"))
def test_window_faults(device: str, what: str, swa_dtype) -> None:
    """The table's neighbours name a slot that fits, so that a reader past its end writes there."""
    verify(Case(device, num_tokens=3, swa_dtype=swa_dtype, **WINDOW_FAULTS[what]))


def test_window_fault_beyond_32_bits(device: str) -> None:
    verify(Case(device, num_tokens=3, slots=[0, 1, 3], swa=[0, 2**40, 2, 3], swa_dtype=torch.int64))


@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_every_feature_with_the_window_table(device: str, layout: str) -> None:
    """fp8, offsets, zeros and both styles keep the translation of slots: only 3 and 20 change."""
    table = [-1] * 1024
    table[900], table[5] = 3, 20
    for cache_dtype, is_neox, has_offs, zeros in itertools.product(
        (torch.float8_e4m3fn, torch.bfloat16), (True, False), (True, False), (True, False)
    ):
        verify(
            Case(
                device,
                num_tokens=2,
                num_blocks=2,
                layout=layout,
                cache_dtype=cache_dtype,
                is_neox=is_neox,
                slots=[900, 5],
                swa=table,
                pos=[9, 200],
                offs=[1, -4] if has_offs else None,
                k_scale=0.5,
                v_scale=2.0,
                output_zeros=zeros,
            )  # fmt: skip
        )


@pytest.mark.parametrize("num_tokens", [2, 34, 66, 100, 182, 256, 512])
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_two_rows_with_one_slot(device: str, layout: str, num_tokens: int) -> None:
    """The last row wins whole, never a mixture: on the CPU in every call, on CUDA in calls of up to 256 rows."""
    if device == "cuda" and num_tokens > 256:
        pytest.skip("undefined which row wins")
    slots = [77, 5]  # every other row is for the same slot
    case = Case(
        device,
        num_tokens=num_tokens,
        slots=slots * (num_tokens // 2),
        layout=layout,
        kv_heads=8,  # from 129 rows on the values go through tiles
        rotary_dim=2,
        dtype=torch.float32,
    )
    call = build(case)
    rows = torch.arange(
        num_tokens, dtype=torch.float32, device=device
    )  # row t holds t, but for the rotated dims
    for name in ("k", "v"):
        call.arguments[name].copy_(rows.reshape(num_tokens, 1, 1).expand(num_tokens, 8, 64))
    for _ in range(150):
        call.run()
        for name in ("key_cache", "value_cache"):
            cache = call.arguments[name]
            offsets = cache_offsets(cache, name == "key_cache", layout == "flash", slots)[:, :, 2:]
            stored = decode(bits_at(storage_bytes(cache), 4, offsets), torch.float32).reshape(2, -1)
            for which in (0, 1):
                assert (stored[which] == stored[which, 0]).all()
                assert stored[which, 0] == num_tokens - 2 + which
