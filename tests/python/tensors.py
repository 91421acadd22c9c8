"""Tensors at chosen strides and offsets inside larger buffers: a stray access lands in a guard band."""

import math
from typing import Sequence

import torch

CANARY = 0x5A  # what caches and outputs hold before the call
POISON = 0xFF  # what surrounds inputs: NaN in every float type, -1 in every integer type
GUARD = 64  # elements before and after; a multiple of 16 bytes in every dtype, so that it keeps the alignment


def packed_strides(shape: Sequence[int], order: Sequence[int] | None = None, padding: int = 0) -> list[int]:
    """Strides of a dense tensor whose dimensions lie in `order`, outermost first and padded by `padding`."""
    order = range(len(shape)) if order is None else order
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    strides[order[0]] += padding
    return strides


def buffer(num_elements: int, dtype: torch.dtype, device: str, fill: int = CANARY) -> torch.Tensor:
    """One-dimensional, every byte the same."""
    return torch.full((num_elements * dtype.itemsize,), fill, dtype=torch.uint8, device=device).view(dtype)


def blank(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: str,
    strides: Sequence[int] | None = None,
    offset: int = GUARD,
    fill: int = CANARY,
) -> torch.Tensor:
    """A tensor of filler bytes inside a buffer that goes on for GUARD elements behind it."""
    strides = packed_strides(shape) if strides is None else strides
    extent = (
        1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if math.prod(shape)
        else 0
    )
    return buffer(offset + extent + GUARD, dtype, device, fill).as_strided(shape, strides, offset)


def place(
    values: torch.Tensor,
    device: str,
    strides: Sequence[int] | None = None,
    offset: int = GUARD,
    fill: int = POISON,
) -> torch.Tensor:
    """values at the given strides and offset, poison around and between them."""
    held = blank(values.shape, values.dtype, "cpu", strides, offset, fill)
    held.copy_(values)
    whole = torch.empty(0, dtype=held.dtype).set_(held.untyped_storage())
    return whole.to(device).as_strided(held.shape, held.stride(), held.storage_offset())


def place_integers(
    values: torch.Tensor, device: str, strides: Sequence[int], poison: int, margin: int = 8
) -> torch.Tensor:
    """Indices whose neighbours hold a number that a stray reader would act on. Rows may share memory."""
    extent = sum(size * stride for size, stride in zip(values.shape, strides, strict=True))
    whole = torch.full((margin + extent + margin,), poison, dtype=values.dtype)
    view = whole.as_strided(values.shape, strides, margin)
    for part, row in zip(view, values, strict=True):
        part.copy_(row)
    return whole.to(device).as_strided(values.shape, strides, margin)


def row_strides(kind: str, shape: Sequence[int]) -> tuple[list[int], int]:
    """Strides and offset of (rows, heads, dims) tensors."""
    rows, heads, dims = shape
    if kind == "contiguous":
        return [heads * dims, dims, 1], GUARD
    if kind == "odd_offset":
        return [heads * dims, dims, 1], GUARD + 1
    if kind == "eight_bytes":  # aligned to 8 bytes in 16-bit types
        return [heads * dims, dims, 1], GUARD + 4
    if kind == "transposed":  # a (heads, rows, dims) tensor
        return [dims, rows * dims, 1], GUARD
    if kind == "dim_stride_2":
        return [heads * dims * 2, dims * 2, 2], GUARD
    if kind == "dims_outermost":
        return [heads, 1, rows * heads], GUARD
    if kind == "padded":  # every row and head 16-byte aligned
        return [heads * (dims + 8) + 16, dims + 8, 1], GUARD
    if kind == "odd_padded":
        return [heads * (dims + 1) + 3, dims + 1, 1], GUARD
    raise ValueError(kind)


ROW_STRIDES = [
    "contiguous", "odd_offset", "eight_bytes", "transposed", "dim_stride_2", "dims_outermost", "padded",
    "odd_padded",
]  # fmt: skip


def fused_rows(parts: Sequence[torch.Tensor], device: str, front: int, back: int) -> list[torch.Tensor]:
    """Views (rows, heads, dims) of one buffer whose row is front pad, every part's heads, back pad."""
    num_rows = max(part.shape[0] for part in parts)
    row = front + sum(part.shape[1] * part.shape[2] for part in parts) + back
    whole = buffer(GUARD + num_rows * row + GUARD, parts[0].dtype, "cpu", POISON)
    offset, places = GUARD + front, []
    for part in parts:
        view = whole.as_strided(part.shape, [row, part.shape[2], 1], offset)
        view.copy_(part)
        places.append((view.shape, view.stride(), offset))
        offset += part.shape[1] * part.shape[2]
    moved = whole.to(device)
    return [moved.as_strided(*place) for place in places]


def cache_pair(
    layout: str,
    num_blocks: int,
    block_size: int,
    num_heads: int,
    head_size: int,
    v_head_size: int,
    x: int,
    dtype: torch.dtype,
    device: str,
    page_padding: int = 0,
    offset: int = GUARD,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Canary-filled key and value caches. The packed layouts put both into one page."""
    flash_k = (num_blocks, block_size, num_heads, head_size)
    flash_v = (num_blocks, block_size, num_heads, v_head_size)
    if layout in ("flash", "hnd"):
        order = (0, 1, 2, 3) if layout == "flash" else (0, 2, 1, 3)  # HND: heads outside the block's tokens
        key, value = (
            blank(shape, dtype, device, packed_strides(shape, order, page_padding), offset)
            for shape in (flash_k, flash_v)
        )
        return key, value
    if layout == "packed_pages":  # a page is K of the whole block, then V
        half = block_size * num_heads * head_size
        page = half + block_size * num_heads * v_head_size + page_padding
        whole = buffer(offset + num_blocks * page + GUARD, dtype, device)
        key = whole.as_strided(flash_k, [page, num_heads * head_size, head_size, 1], offset)
        value = whole.as_strided(flash_v, [page, num_heads * v_head_size, v_head_size, 1], offset + half)
        return key, value
    if layout == "packed_heads":  # K and V of one token and head lie side by side
        both = head_size + v_head_size
        page = block_size * num_heads * both + page_padding
        whole = buffer(offset + num_blocks * page + GUARD, dtype, device)
        strides = [page, num_heads * both, both, 1]
        return whole.as_strided(flash_k, strides, offset), whole.as_strided(
            flash_v, strides, offset + head_size
        )
    key_shape = (num_blocks, num_heads, head_size // x, block_size, x)
    if layout == "x_split":
        value_shape = (num_blocks, num_heads, v_head_size, block_size)
    elif layout == "shuffled":
        value_shape = (num_blocks, num_heads, block_size // x, v_head_size, x)
    else:
        raise ValueError(layout)
    key, value = (
        blank(shape, dtype, device, packed_strides(shape, padding=page_padding), offset)
        for shape in (key_shape, value_shape)
    )
    return key, value


LAYOUTS = ["flash", "hnd", "packed_pages", "packed_heads", "x_split", "shuffled"]


def is_flash(layout: str) -> bool:
    return layout not in ("x_split", "shuffled")
