"""Faults that kernels of this kind had in the field, where no other test has the whole kind."""

import itertools
from typing import Any

import pytest
import torch

from cases import Call, Case, build, verify
from elements import Memory, bits_at, cache_offsets, storage_bytes
from fp8_codes import E4M3
from tensors import LAYOUTS


def table_among_others(device: str, width: int) -> torch.Tensor:
    """Rows 0..255 of a longer table whose other rows are NaN."""
    whole = torch.full((512, width), torch.nan, device=device)
    whole[:256] = torch.rand(256, width, device=device) * 2 - 1
    return whole[:256]


@pytest.mark.parametrize("width", [64, 96, 65, 0, 384])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_narrower_or_wider_than_the_head(device: str, layout: str, width: int) -> None:
    """No foreign columns: refused, unless rotary_dim says that the table fits a part of the head."""
    call = build(Case(device, head_size=128, layout=layout))
    call.arguments["cos_sin"] = table_among_others(device, width)
    memory = Memory(call.tensors())
    with pytest.raises(ValueError, match=rf": cos_sin: expected width 128 or 256 .*128.*, got {width}$"):
        call.run()
    memory.compare()
    if width in (64, 96):
        call.arguments["rotary_dim"] = width
        verify(call)


@pytest.mark.parametrize("head_size", [40, 80, 96, 112, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_columns_for_head_sizes_that_are_no_power_of_two(
    device: str, layout: str, dtype, head_size: int
) -> None:
    """Cosine column j holds 1000 + j, sine column j 2000 + j; unit vectors spell out which one was taken."""
    units = torch.eye(head_size).unsqueeze(1)
    for is_neox, full_width in itertools.product((True, False), (True, False)):
        columns = head_size if full_width else head_size // 2
        row = torch.cat((1000.0 + torch.arange(columns), 2000.0 + torch.arange(columns)))
        sizes = dict(num_tokens=head_size, q_heads=1, kv_heads=1, head_size=head_size, layout=layout, x=8)
        table = dict(table=row.repeat(2, 1), table_rows=2, full_width=full_width, is_neox=is_neox)
        verify(Case(device, dtype=dtype, q=units, k=units, v=units, **sizes, **table))


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("head_size", [64, 128])
def test_the_table_ends_with_its_memory(device: str, head_size: int, is_neox: bool) -> None:
    """Positions in the last row of an allocation that ends there: a memory checker sees who reads on."""
    for table_dtype, full_width in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        call = build(Case(device, head_size=head_size, is_neox=is_neox, table_rows=64, pos=[63] * 5,
                          table_dtype=table_dtype, full_width=full_width))  # fmt: skip
        call.arguments["cos_sin"] = call.arguments["cos_sin"].clone(memory_format=torch.contiguous_format)
        verify(call)


WRONG_RANKS = [(3, 4), (4, 1), (1, 4), (), (2, 2)]


@pytest.mark.parametrize("name", ["pos", "offs", "slot_mapping"])
@pytest.mark.parametrize("shape", [*WRONG_RANKS, (5,), (3,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_indices_of_another_rank_or_length(device: str, dtype, shape: tuple[int, ...], name: str) -> None:
    """Positions of three axes among them: refused before anything is written, guard bands included."""
    if name == "slot_mapping" and shape == (3,):
        pytest.skip("a mapping may be shorter")
    outputs = dict(q_out="contiguous", k_out="contiguous", zeros_out="contiguous")
    call = build(Case(device, num_tokens=4, pos=[0, 1, 2, 3], offs=[0] * 4, **outputs))
    call.arguments[name] = torch.zeros(shape, dtype=dtype, device=device)
    memory = Memory(call.tensors())
    with pytest.raises(ValueError, match=rf": {name}: expected .*got (\({', '.join(map(str, shape))}|\d)"):
        call.run()
    memory.compare()


@pytest.mark.parametrize("block_size, x", [(24, 16), (1, 8), (2, 4), (7, 2)])
def test_shuffled_values_in_blocks_that_x_does_not_divide(device: str, block_size: int, x: int) -> None:
    """Refused with the reason; the same caches with values of rank 4 are taken."""
    call = build(Case(device, layout="x_split", x=x, block_size=block_size, num_blocks=90 // block_size))
    shape = (90 // block_size, 2, max(1, block_size // x), 64, x)
    values = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    bad = Call({**call.arguments, "value_cache": values})
    with pytest.raises(ValueError, match=rf": value_cache: .*x={x} .*block_size={block_size}"):
        bad.run()
    verify(call)


SHARED: dict[str, dict[str, Any]] = {
    "bf16": dict(),
    "fp32": dict(dtype=torch.float32),
    "fp8": dict(cache_dtype=torch.float8_e4m3fn),
    "unaligned": dict(strides="odd_offset", cache_offset=65),
}


@pytest.mark.parametrize("what", SHARED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_share_a_slot_are_whole(device: str, layout: str, what: str) -> None:
    """Eight rows for each of two slots: what is stored is one of them, whatever the layout and path."""
    slots, num_tokens = [77, 5], 16
    values = torch.arange(num_tokens, dtype=torch.float32).reshape(-1, 1, 1).expand(-1, 2, 64)  # exact in fp8
    options = dict(num_tokens=num_tokens, slots=slots * 8, k=values, v=values, rotary_dim=2, **SHARED[what])
    call = build(Case(device, layout=layout, **options))
    for _ in range(100 if device == "cuda" else 10):
        call.run()
        for name in ("key_cache", "value_cache"):
            cache = call.arguments[name]
            offsets = cache_offsets(cache, name == "key_cache", call.arguments["flash_layout"], slots)[
                ..., 2:
            ]
            bits = bits_at(storage_bytes(cache), cache.element_size(), offsets)
            for i, row in enumerate(bits.reshape(2, -1)):
                assert (row == row[0]).all(), name
                stored = number_of(row[0], cache.dtype)
                assert stored % 2 == i and 0 <= stored < num_tokens, name


def number_of(bits: Any, dtype: torch.dtype) -> float:
    if dtype == torch.float8_e4m3fn:
        return float(E4M3.values[int(bits)])
    integer = {torch.bfloat16: torch.int16, torch.float32: torch.int32}[dtype]
    return torch.tensor(int(bits), dtype=torch.int64).to(integer).view(dtype).item()
