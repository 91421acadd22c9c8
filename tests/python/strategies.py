"""Random cases over the contract: shapes, strides, layouts, dtypes, slots and positions of any value."""

import math
from typing import Any

import torch
from hypothesis import strategies as st

from cases import POS_LAYOUTS, Call, Case, build
from tensors import GUARD, LAYOUTS, ROW_STRIDES, place

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
INTEGERS = [torch.int64, torch.int32]
SCALES = st.one_of(st.none(), st.sampled_from([1.0, 0.5, 0.037, 3.0, 448.0, -2.0]))


@st.composite
def rotary(draw: st.DrawFn, head_size: int) -> tuple[int | None, int]:
    """rotary_dim and its offset; half of the time the whole head."""
    if draw(st.booleans()):
        return None, 0
    rotary_dim = 2 * draw(st.integers(1, head_size // 2))
    return rotary_dim, draw(st.integers(0, head_size - rotary_dim))


@st.composite
def mrope(draw: st.DrawFn, rotary_dim: int) -> dict[str, Any]:
    """Fields of a Case: none, or three sections of any size, in either order, also with one axis."""
    if draw(st.booleans()):
        return {}
    first = draw(st.integers(0, rotary_dim // 2))
    second = draw(st.integers(0, rotary_dim // 2 - first))
    return dict(
        mrope_section=draw(st.permutations([first, second, rotary_dim // 2 - first - second])),
        mrope_interleaved=draw(st.booleans()),
        axes=draw(st.sampled_from([3, 3, 3, 1])),
        pos_layout=draw(st.sampled_from(POS_LAYOUTS)),
    )


@st.composite
def norms(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a Case: none, or the norm of q, of k or of both."""
    norm = draw(st.sampled_from(["", "", "q", "k", "qk", "qk"]))
    if not norm:
        return {}
    return dict(
        norm=norm,
        weight_dtype=draw(st.sampled_from([None, torch.float32])),
        weight_stride=draw(st.sampled_from([1, 1, 1, 3])),
        weight_offset=GUARD + draw(st.sampled_from([0, 0, 1, 4])),
        weight_plus_one=draw(st.booleans()),
        eps=draw(st.sampled_from([None, 1e-5, 0.25])),
    )


@st.composite
def cases(draw: st.DrawFn, device: str) -> Case:
    """Valid input: distinct slots, padding among them, positions in the table."""
    num_tokens = draw(st.integers(0, 9))
    num_kv_rows = num_tokens + draw(st.sampled_from([0, 0, 1, 3]))
    num_slots = draw(st.one_of(st.just(num_kv_rows), st.integers(0, num_kv_rows)))
    kv_heads = draw(st.integers(1, 4))
    head_size = 2 * draw(st.one_of(st.integers(1, 40), st.sampled_from([32, 48, 64, 128, 256])))
    rotary_dim, rotary_dim_offset = draw(rotary(head_size))
    layout = draw(st.sampled_from(LAYOUTS))
    x = draw(st.sampled_from([x for x in (1, 2, 4, 8, 16, 32) if head_size % x == 0]))
    block_size = draw(st.sampled_from([1, 2, 3, 7, 16, 24, 32, 100]))
    if layout == "shuffled":
        block_size *= x // math.gcd(block_size, x)
    num_blocks = -(-(num_slots + 2) // block_size) + draw(st.integers(0, 2))
    capacity = num_blocks * block_size

    slots = draw(st.lists(st.integers(0, capacity - 1), min_size=num_slots, max_size=num_slots, unique=True))
    for row in draw(st.sets(st.integers(0, num_slots - 1), max_size=3)) if num_slots else ():
        slots[row] = draw(st.sampled_from([-1, -16, -(2**31)]))
    swa = None
    if draw(st.integers(0, 3)) == 0:  # translate the same slots through a table of evicted and live entries
        swa = [-1] * (num_slots + 5)
        for row, slot in enumerate(slots):
            if slot >= 0:
                swa[row + 3], slots[row] = draw(st.sampled_from([slot, slot, -1])), row + 3

    table_rows = draw(st.integers(1, 300))
    sections = draw(mrope(rotary_dim or head_size))
    one = st.lists(st.integers(0, table_rows - 1), min_size=num_tokens, max_size=num_tokens)
    axes = [draw(one) for _ in range(sections.get("axes", 1))]
    offs = None
    if draw(st.booleans()):
        offs = draw(st.lists(st.integers(-1000, 1000), min_size=num_tokens, max_size=num_tokens))
        axes = [[p - o for p, o in zip(axis, offs, strict=True)] for axis in axes]
    pos = axes if len(axes) == 3 else axes[0]

    dtype = draw(st.sampled_from(DTYPES))
    cache_dtype = draw(st.sampled_from([dtype, dtype, *FP8, torch.uint8]))
    kinds = st.sampled_from(ROW_STRIDES)
    strides = draw(st.one_of(st.just("fused_qkv"), st.tuples(kinds, kinds, kinds)))
    q_out_dtype = draw(st.sampled_from([None, None, *FP8]))
    q_is_viewable = strides == "fused_qkv" or strides[0] not in (
        "transposed",
        "dims_outermost",
        "padded",
        "odd_padded",
    )
    return Case(
        device=device,
        num_tokens=num_tokens,
        num_kv_rows=num_kv_rows,
        q_heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_size=head_size,
        v_head_size=draw(st.one_of(st.just(head_size), st.integers(1, 130))),
        dtype=dtype,
        seed=draw(st.integers(0, 2**16)),
        layout=layout,
        cache_dtype=cache_dtype,
        kv_cache_dtype=draw(st.sampled_from(["fp8", "fp8_e4m3", "fp8_e5m2"]))
        if cache_dtype == torch.uint8
        else "auto",
        x=x,
        block_size=block_size,
        num_blocks=num_blocks,
        page_padding=draw(st.sampled_from([0, 0, 1, 8, 5])),
        cache_offset=GUARD + draw(st.sampled_from([0, 0, 1, 2, 4, 8])),
        is_neox=draw(st.booleans()),
        rotary_dim=rotary_dim,
        rotary_dim_offset=rotary_dim_offset,
        table_dtype=draw(st.sampled_from(DTYPES)),
        table_rows=table_rows,
        table_padding=draw(st.sampled_from([0, 0, 1, 8])),
        table_offset=GUARD + draw(st.sampled_from([0, 0, 1, 4])),
        full_width=draw(st.booleans()),
        pos=pos,
        pos_dtype=draw(st.sampled_from(INTEGERS)),
        offs=offs,
        offs_dtype=draw(st.sampled_from(INTEGERS)),
        slots=slots,
        slot_dtype=draw(st.sampled_from(INTEGERS)),
        swa=swa,
        swa_dtype=draw(st.sampled_from(INTEGERS)),
        index_stride=draw(st.sampled_from([1, 1, 2, 5])),
        **sections,
        **draw(norms()),
        q_out_dtype=q_out_dtype,
        q_scale=draw(st.one_of(SCALES, st.just([0.5 * (i + 1) for i in range(kv_heads)])))
        if q_out_dtype
        else None,
        k_scale=draw(st.one_of(SCALES, st.just([0.25 * (i + 1) for i in range(kv_heads)]))),
        v_scale=draw(st.one_of(SCALES, st.just([3.0 / (i + 1) for i in range(kv_heads)]))),
        apply_scale=draw(st.booleans()),
        extremes=draw(st.booleans()),
        strides=strides,
        q_out=draw(
            st.sampled_from(
                [None, "contiguous", "odd_offset", "dim_stride_2"]
                + ["in_place"] * (q_is_viewable and q_out_dtype is None)
            )
        ),
        k_out=draw(st.sampled_from([None, "in_place", *ROW_STRIDES])),
        zeros_out=draw(st.sampled_from([None, None, *ROW_STRIDES])),
        output_zeros=draw(st.booleans()),
        options=draw(st.sampled_from([{}, {}, dict(match_unfused=True)])),
    )


HOSTILE = st.one_of(
    st.integers(-3, 40),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([-(2**31), 2**31 - 1, -1, 0, 31, 32, 33]),
)


@st.composite
def hostile_calls(draw: st.DrawFn, device: str) -> Call:
    """Slots, window entries, positions and offsets of any value; live slots are made distinct."""
    num_tokens, num_kv_rows = draw(st.sampled_from([(1, 1), (4, 4), (6, 6), (3, 7), (0, 3)]))
    sections = draw(mrope(8))
    q_out_dtype = draw(st.sampled_from([None, *FP8]))
    many = lambda size: draw(st.lists(HOSTILE, min_size=size, max_size=size))  # noqa: E731
    slots = many(draw(st.integers(0, num_kv_rows)))
    swa = many(draw(st.integers(0, 40))) if draw(st.booleans()) else None
    landed = set()
    for row, slot in enumerate(slots):
        place_ = slot if swa is None else swa[slot] if 0 <= slot < len(swa) else None
        if place_ in landed:
            slots[row] = -5
        landed.add(place_)
    return build(
        Case(
            device=device,
            num_tokens=num_tokens,
            num_kv_rows=num_kv_rows,
            q_heads=2,
            kv_heads=1,
            head_size=8,
            num_blocks=2,
            slots=slots,
            slot_dtype=draw(st.sampled_from(INTEGERS)),
            swa=swa,
            swa_dtype=draw(st.sampled_from(INTEGERS)),
            pos=[many(num_tokens) for _ in range(3)] if sections.get("axes") == 3 else many(num_tokens),
            **sections,
            pos_dtype=draw(st.sampled_from(INTEGERS)),
            table_rows=32,
            offs=many(num_tokens) if draw(st.booleans()) else None,
            offs_dtype=draw(st.sampled_from(INTEGERS)),
            layout=draw(st.sampled_from(["flash", "x_split", "shuffled"])),
            output_zeros=draw(st.booleans()),
            q_out=draw(st.sampled_from([None, "contiguous"] + ["in_place"] * (q_out_dtype is None))),
            q_out_dtype=q_out_dtype,
            x=4,
        )  # fmt: skip
    )


@st.composite
def any_strides(draw: st.DrawFn, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same values in dense memory of any order of dimensions, any padding and any offset."""
    order = draw(st.permutations(range(tensor.dim())))
    strides, step = [0] * tensor.dim(), draw(st.sampled_from([1, 1, 1, 2, 3]))
    for dim in order:
        strides[dim] = step
        step = step * tensor.shape[dim] + draw(st.sampled_from([0, 0, 1, 8]))
    return place(tensor, device, strides, GUARD + draw(st.integers(0, 8)))
