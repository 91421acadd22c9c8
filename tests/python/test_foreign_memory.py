"""Numbers that fit nothing, in every layout and dtype. Caches are the middle of a canary-filled buffer.

verify() compares every byte of every storage: the blocks beside the cache, the guard bands round it, the
slots of rows that are not cached. What lies beside tables and mappings names live slots and holds NaN.
"""

import pytest
import torch

from cases import Call, Case, build, verify
from tensors import LAYOUTS

INTEGERS = [torch.int32, torch.int64]
CACHES = {
    "bf16": dict(dtype=torch.bfloat16),
    "fp16": dict(dtype=torch.float16),
    "fp32": dict(dtype=torch.float32),
    "e4m3": dict(dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=[2.0, 0.1]),
    "e5m2": dict(dtype=torch.float32, cache_dtype=torch.float8_e5m2, v_scale=3.0),
    "bytes": dict(dtype=torch.float16, cache_dtype=torch.uint8, kv_cache_dtype="fp8"),
}
CAPACITY = 4 * 32  # of the four blocks in the middle

pytestmark = [
    pytest.mark.parametrize("layout", LAYOUTS),
    pytest.mark.parametrize("cache", CACHES),
    pytest.mark.parametrize("integer", INTEGERS, ids=str),
]


def beyond(integer: torch.dtype, limit: int) -> list[int]:
    """At and past a limit, up to the largest; some become small again when they are cut to fewer bits."""
    largest = torch.iinfo(integer).max
    wide = [2**31, 2**32, 2**32 + 5, 2**40 + 1, 2**62] if integer == torch.int64 else [2**30, 2**24 + 3]
    return [limit, limit + 1, 2 * limit, *wide, largest - 1, largest]


def negative(integer: torch.dtype) -> list[int]:
    smallest = torch.iinfo(integer).min
    wide = [-(2**32), -(2**32) + 5, -(2**40)] if integer == torch.int64 else [-(2**30)]
    return [-1, -2, -32, -CAPACITY, -CAPACITY - 1, *wide, smallest + 1, smallest]


def inner_call(device: str, layout: str, cache: str, **options) -> Call:
    case = dict(q_heads=4, kv_heads=2, head_size=32, num_blocks=8, block_size=32, table_rows=16)
    call = build(Case(device, layout=layout, **{**case, **CACHES[cache], **options}))
    for name in ("key_cache", "value_cache"):
        call.arguments[name] = call.arguments[name][2:6]
    return call


def spread(live: list[int], bad: list[int]) -> list[int]:
    """Live numbers before, between and after the bad ones."""
    return [live[0], *bad[:3], live[1], *bad[3:], live[2]]


def test_slots_past_the_cache(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    slots = spread([0, 40, CAPACITY - 1], beyond(integer, CAPACITY))
    verify(inner_call(device, layout, cache, num_tokens=len(slots), slots=slots, slot_dtype=integer))


def test_negative_slots(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    """Padding: no fault, and neither the last slot nor the row before the cache."""
    slots = spread([0, 40, 77], negative(integer))
    verify(inner_call(device, layout, cache, num_tokens=len(slots), slots=slots, slot_dtype=integer))


def test_entries_of_the_window_table(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    """Negative entries evict; entries past the cache are faults. Live, evicted and bad ones side by side."""
    evicted = spread([0, 40, CAPACITY - 1], negative(integer))
    bad = spread([1, 41, CAPACITY - 2], beyond(integer, CAPACITY))
    for table in (evicted, bad):
        slots = range(len(table))
        options = dict(num_tokens=len(table), slots=slots, swa=table, swa_dtype=integer)
        verify(inner_call(device, layout, cache, **options))


def test_slots_past_the_window_table(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    slots = spread([0, 3, 6], beyond(integer, 7))
    options = dict(num_tokens=len(slots), slots=slots, slot_dtype=integer, swa=[9, 8, 7, 6, 5, 4, 3])
    verify(inner_call(device, layout, cache, **options))


def test_positions_outside_the_table(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    """A row without a position is not cached; where it is padding it is no fault either."""
    pos = spread([0, 7, 15], [*beyond(integer, 16), *negative(integer)])
    options = dict(num_tokens=len(pos), pos=pos, pos_dtype=integer)
    verify(inner_call(device, layout, cache, slots=range(len(pos)), **options))
    verify(inner_call(device, layout, cache, slots=[-1] * len(pos), **options))


def test_offsets_that_leave_the_table(device: str, layout: str, cache: str, integer: torch.dtype) -> None:
    """pos of the other integer type. Sums that leave 64 bits are another test's."""
    offs = spread([0, 7, 11], [*beyond(integer, 12), *negative(integer)])
    limits = torch.iinfo(torch.int64)
    offs = [o for o in offs if limits.min + 5 < o < limits.max - 5]
    other = INTEGERS[integer == torch.int32]
    options = dict(num_tokens=len(offs), pos=[4] * len(offs), pos_dtype=other, offs=offs, offs_dtype=integer)
    verify(inner_call(device, layout, cache, slots=range(len(offs)), **options))
