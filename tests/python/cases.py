"""A call in a few words: a Case says what is special, build() makes its tensors, verify() judges the call."""

import math
import random
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import pytest
import torch

import oracle
from calls import FUSED, Call
from elements import (
    Memory,
    bits_at,
    bits_of,
    cache_offsets,
    compare_rows,
    decode,
    element_offsets,
    storage_bytes,
)
from tensors import GUARD, blank, cache_pair, fused_rows, is_flash, place, place_integers, row_strides


@dataclass
class Case:
    """The base case: five tokens of 8 query and 2 key heads, bf16, flash layout. Every field can differ."""

    device: str = "cpu"
    num_tokens: int = 5
    num_kv_rows: int | None = None  # num_tokens
    num_slots: int | None = None  # num_kv_rows
    q_heads: int = 8
    kv_heads: int = 2
    head_size: int = 64
    v_head_size: int | None = None  # head_size
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0

    layout: str = "flash"  # tensors.LAYOUTS
    cache_dtype: torch.dtype | None = None  # dtype
    kv_cache_dtype: str = "auto"
    x: int | None = None  # 16 bytes' worth
    block_size: int = 16
    num_blocks: int | None = None  # 8, or as many as the slots need
    page_padding: int = 0
    cache_offset: int = GUARD

    is_neox: bool = True
    rotary_dim: int | None = None
    rotary_dim_offset: int = 0
    table_dtype: torch.dtype = torch.float32
    table_rows: int = 256
    table_padding: int = 0  # elements between rows
    table_offset: int = GUARD
    full_width: bool = False
    table: torch.Tensor | None = None  # (P, W) values, else random

    mrope_section: Sequence[int] | None = None
    mrope_interleaved: bool = False
    axes: int | None = None  # of random positions: 3 with a section, else 1

    pos: Sequence[Any] | None = None  # (T,) or (3, T); random, the table's first and last row among them
    pos_dtype: torch.dtype = torch.int64
    pos_layout: str = "rows"  # POS_LAYOUTS, of (3, T)
    offs: Sequence[int] | None = None
    offs_dtype: torch.dtype = torch.int64
    slots: Sequence[int] | None = None  # random and distinct, the last slot among them
    slot_dtype: torch.dtype = torch.int64
    swa: Sequence[int] | None = None
    swa_dtype: torch.dtype = torch.int32
    index_stride: int = 1

    norm: str = ""  # of "q", "k" or "qk": random weights about 1
    weight_dtype: torch.dtype | None = None  # dtype
    weight_stride: int = 1
    weight_offset: int = GUARD
    weight_plus_one: bool = False
    eps: float | None = None  # 1e-6

    q_scale: Any = None  # number, list (one per key head) or tensor
    k_scale: Any = None
    v_scale: Any = None
    apply_scale: bool = True

    q: torch.Tensor | None = None  # values, else random
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    extremes: bool = False  # some random values become zeros, NaN, infinities, very large or very small
    strides: str | Sequence[str] = "contiguous"  # one of tensors.ROW_STRIDES for q, k, v; or "fused_qkv"
    q_out: str | None = None  # None: omitted; "in_place"; or a kind of strides: given
    q_out_dtype: torch.dtype | None = None  # dtype; another one makes q_out "contiguous" where it is omitted
    k_out: str | None = None
    zeros_out: str | None = None  # None or a kind of strides
    output_zeros: bool = False

    options: dict[str, Any] = field(default_factory=dict)  # further keywords

    def __post_init__(self) -> None:
        self.axes = self.axes or (3 if self.mrope_section is not None else 1)
        self.q_out = self.q_out or (None if self.q_out_dtype is None else "contiguous")
        self.num_kv_rows = self.num_tokens if self.num_kv_rows is None else self.num_kv_rows
        self.v_head_size = self.v_head_size or self.head_size
        self.cache_dtype = self.cache_dtype or self.dtype
        self.weight_dtype = self.weight_dtype or self.dtype
        self.x = self.x or 16 // self.cache_dtype.itemsize
        if self.num_slots is None:
            self.num_slots = self.num_kv_rows if self.slots is None else len(self.slots)
        self.num_blocks = self.num_blocks or max(8, math.ceil((self.num_slots + 3) / self.block_size))


EXTREMES = [
    0.0, -0.0, math.nan, math.inf, -math.inf, 3.0e38, -3.0e38, 6e4, 500.0, -464.0, 2**-9, 2**-10, 1e-30,
]  # fmt: skip


def random_values(case: Case, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if case.extremes:
        replacements = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < 0.1, replacements, values)
    return values.to(case.dtype)


def random_rows(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = {
        "q": (case.num_tokens, case.q_heads, case.head_size),
        "k": (case.num_kv_rows, case.kv_heads, case.head_size),
        "v": (case.num_kv_rows, case.kv_heads, case.v_head_size),
    }
    values = {name: random_values(case, shape, generator) for name, shape in shapes.items()}
    given = {name: getattr(case, name) for name in shapes}
    return tuple(values[name] if given[name] is None else given[name].to(case.dtype) for name in shapes)


def placed_rows(case: Case, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if case.strides == "fused_qkv":  # no row or part is 16-byte aligned
        return fused_rows(rows, case.device, front=1, back=3)
    kinds = [case.strides] * 3 if isinstance(case.strides, str) else case.strides
    return [place(x, case.device, *row_strides(kind, x.shape)) for kind, x in zip(kinds, rows, strict=True)]


def placed_indices(case: Case, values: Sequence[int], dtype: torch.dtype, poison: int) -> torch.Tensor:
    return place_integers(torch.tensor(list(values), dtype=dtype), case.device, [case.index_stride], poison)


POS_LAYOUTS = ["rows", "columns", "slice", "one_row"]


def placed_positions(case: Case, pos: Sequence[Any]) -> torch.Tensor:
    """(T,) or, of three sequences, (3, T)."""
    poison, size, stride = case.table_rows // 2, case.num_tokens, case.index_stride
    if not pos or isinstance(pos[0], int):
        return placed_indices(case, pos, case.pos_dtype, poison)
    strides = {
        "rows": [size * stride, stride],
        "columns": [1, 3 * stride],  # a (T, 3) tensor
        "slice": [size * stride + 9, stride],  # of a longer one
        "one_row": [0, stride],  # expanded: equal axes, the last one's
    }[case.pos_layout]
    axes = torch.tensor([list(axis) for axis in pos], dtype=case.pos_dtype)
    return place_integers(axes, case.device, strides, poison)


def make_table(case: Case, generator: torch.Generator) -> torch.Tensor:
    rotary_dim = case.head_size if case.rotary_dim is None else case.rotary_dim
    width = 2 * rotary_dim if case.full_width else rotary_dim
    values = torch.rand((case.table_rows, width), generator=generator, dtype=torch.float64) * 2 - 1
    values = (values if case.table is None else case.table).to(case.table_dtype)
    strides = [values.shape[1] + case.table_padding, 1]
    return place(values, case.device, strides, case.table_offset)


def make_scale(scale: Any, device: str) -> torch.Tensor | None:
    if scale is None or isinstance(scale, torch.Tensor):
        return scale
    return torch.tensor(scale, dtype=torch.float32, device=device)


def norm_arguments(case: Case) -> dict[str, Any]:
    """q_weight, k_weight and what goes with them; nothing without a norm, so that defaults are tried."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    arguments: dict[str, Any] = {}
    for part in case.norm:
        values = torch.randn(case.head_size, generator=generator) / 4 + (not case.weight_plus_one)
        values = values.to(case.weight_dtype)
        arguments[f"{part}_weight"] = place(values, case.device, [case.weight_stride], case.weight_offset)
    if case.norm and case.weight_plus_one:
        arguments["weight_plus_one"] = True
    if case.norm and case.eps is not None:
        arguments["eps"] = case.eps
    return arguments


def query_arguments(case: Case) -> dict[str, Any]:
    """mRoPE and the scale of an fp8 q_out, where they are given."""
    arguments: dict[str, Any] = {}
    if case.mrope_section is not None:
        arguments["mrope_section"] = list(case.mrope_section)
    if case.mrope_interleaved:
        arguments["mrope_interleaved"] = True
    if case.q_scale is not None:
        arguments["q_scale"] = make_scale(case.q_scale, case.device)
    return arguments


def make_output(
    kind: str | None, source: torch.Tensor, device: str, dtype: torch.dtype | None = None
) -> torch.Tensor | None:
    if kind is None or kind == "in_place":
        return source if kind else None
    return blank(source.shape, dtype or source.dtype, device, *row_strides(kind, source.shape))


def random_positions(case: Case, chooser: random.Random) -> list[int]:
    drawn = [chooser.randrange(case.table_rows) for _ in range(case.num_tokens)]
    return [0, case.table_rows - 1, *drawn][: case.num_tokens]


def build(case: Case) -> Call:
    generator = torch.Generator().manual_seed(case.seed)
    chooser = random.Random(case.seed)
    q, k, v = placed_rows(case, random_rows(case, generator))
    key_cache, value_cache = cache_pair(
        case.layout, case.num_blocks, case.block_size, case.kv_heads, case.head_size, case.v_head_size,
        case.x, case.cache_dtype, case.device, case.page_padding, case.cache_offset,
    )  # fmt: skip

    pos = case.pos
    if pos is None:
        pos = [random_positions(case, chooser) for _ in range(case.axes)]
        pos = pos if case.axes == 3 else pos[0]
    slots, num_slots = case.slots, case.num_blocks * case.block_size
    if slots is None:
        slots = [num_slots - 1] + chooser.sample(range(num_slots - 1), max(case.num_slots - 1, 0))
        slots = slots[: case.num_slots]
    unused = min(set(range(num_slots)) - set(slots), default=-1)

    return Call(
        dict(
            q=q,
            k=k,
            v=v,
            key_cache=key_cache,
            value_cache=value_cache,
            slot_mapping=placed_indices(case, slots, case.slot_dtype, poison=unused),
            pos=placed_positions(case, pos),
            cos_sin=make_table(case, generator),
            k_scale=make_scale(case.k_scale, case.device),
            v_scale=make_scale(case.v_scale, case.device),
            is_neox=case.is_neox,
            flash_layout=is_flash(case.layout),
            apply_scale=case.apply_scale,
            offs=None if case.offs is None else placed_indices(case, case.offs, case.offs_dtype, poison=1),
            q_out=make_output(case.q_out, q, case.device, case.q_out_dtype),
            k_out=make_output(case.k_out, k, case.device),
            output_zeros=case.output_zeros,
            zeros_out=make_output(case.zeros_out, q, case.device),
            swa_slot_mapping=None
            if case.swa is None
            else placed_indices(case, case.swa, case.swa_dtype, poison=0),
            rotary_dim=case.rotary_dim,
            rotary_dim_offset=case.rotary_dim_offset,
            kv_cache_dtype=case.kv_cache_dtype,
            **query_arguments(case),
            **norm_arguments(case),
            **case.options,
        )
    )


def verify(case: Case | Call, operation: Callable[..., Any] | None = None) -> Call:
    """Makes the call; checks all that it did and all that it must not have done. Returns the call."""
    call = build(case) if isinstance(case, Case) else case
    expected = oracle.expect(call.arguments)
    inputs = {name: bits_of(x) for name, x in call.tensors().items() if name in ("q", "k")}
    memory = Memory(call.tensors())
    if expected.faults and call.device.type == "cpu":
        with pytest.raises(IndexError) as error:
            call.run(operation)
        check_fault_message(str(error.value), expected.faults)
        memory.compare()  # nothing written
        return call
    check_outputs(call, call.run(operation), expected, inputs, memory)
    memory.compare()
    if call.device.type == "cuda":
        check_recorded_fault(call.device, expected.faults)
    return call


def named_results(call: Call, results: Any) -> dict[str, torch.Tensor]:
    arguments = call.arguments
    if call.operation == "reshape_and_cache":
        assert results is None
        return {name: arguments[name] for name in ("key_cache", "value_cache")}
    names = ["q_out", "k_out"]
    if call.operation == "rope":
        if arguments["k"] is None:
            assert results[1] is None
            results, names = results[:1], names[:1]
    else:
        names += ["key_cache", "value_cache"]
        names += ["zeros_out"] if arguments["output_zeros"] or arguments["zeros_out"] is not None else []
    assert isinstance(results, tuple) and len(results) == len(names)
    return dict(zip(names, results, strict=True))


def check_outputs(
    call: Call, results: Any, expected: oracle.Expected, inputs: dict[str, Any], memory: Memory
) -> None:
    arguments, got = call.arguments, named_results(call, results)
    for name, result in got.items():
        like = arguments[{"q_out": "q", "k_out": "k", "zeros_out": "q"}.get(name, name)]
        has_joined_heads = name == "q_out" and call.operation == FUSED
        shape = (like.shape[0], like.shape[1] * like.shape[2]) if has_joined_heads else like.shape
        given = arguments.get(name)
        dtype = given.dtype if name == "q_out" and given is not None else like.dtype
        check_result(name, result, given, shape, like, dtype)

    for name in [name for name in ("q_out", "k_out") if name in got]:
        rows: oracle.Rows = getattr(expected, name)
        output = got[name].view(rows.value.shape)
        compare_rows(name, bits_of(output), output.dtype, rows)
        if output.dtype == arguments[name[0]].dtype:
            check_passed_through(name, bits_of(output), inputs[name[0]], rows, expected.replaced_rows)
        memory.allow(output, element_offsets(output))
    if "zeros_out" in got:
        zeros_out = got["zeros_out"]
        assert not bits_of(zeros_out).any(), "zeros_out: expected zeros"
        memory.allow(zeros_out, element_offsets(zeros_out))
    if expected.keys_are_of_k_out:
        expected.key_cache = oracle.keys_of(expected, decode(bits_of(got["k_out"]), got["k_out"].dtype))
    for name in [name for name in ("key_cache", "value_cache") if name in got]:
        cache = arguments[name]
        offsets = cache_offsets(cache, name == "key_cache", arguments["flash_layout"], expected.slots)
        bits = bits_at(storage_bytes(cache), cache.element_size(), offsets)
        compare_rows(name, bits, cache.dtype, getattr(expected, name), arguments["kv_cache_dtype"])
        memory.allow(cache, offsets)


def check_result(
    name: str, result: Any, given: torch.Tensor | None, shape: Sequence[int], like: torch.Tensor,
    dtype: torch.dtype,
) -> Any:  # fmt: skip
    assert isinstance(result, torch.Tensor), name
    assert result.shape == torch.Size(shape), (
        f"{name}: expected shape {tuple(shape)}, got {tuple(result.shape)}"
    )
    assert (result.dtype, result.device) == (dtype, like.device), name
    if given is not None:
        assert result.data_ptr() == given.data_ptr(), f"{name}: expected the tensor that was given"
    return result


def check_passed_through(
    name: str, got: Any, given: Any, rows: oracle.Rows, replaced_rows: list[int]
) -> None:
    """Elements that are neither rotated nor normed keep their bits, NaN's payload included."""
    kept = ~rows.is_computed
    kept[replaced_rows] = False
    assert (got[kept] == given[kept]).all(), f"{name}: elements outside the rotated dims changed their bits"


def check_fault_message(message: str, faults: Sequence[oracle.Fault]) -> None:
    """Names argument, row and value of one of the faults."""
    numbers = set(re.findall(r"-?\d+", message))
    assert any(
        re.search(rf"\b{fault.argument}\b", message) and {str(fault.row), str(fault.value)} <= numbers
        for fault in faults
    ), f"expected one of {faults}, got: {message}"


def check_recorded_fault(device: torch.device, faults: Sequence[oracle.Fault]) -> None:
    import kvrope

    recorded = kvrope.last_fault(device)
    if not faults:
        assert recorded is None, recorded
        return
    assert recorded is not None, f"expected one of {faults} to be recorded"
    assert oracle.Fault(*recorded) in faults, f"expected one of {faults}, got {recorded}"
    with pytest.raises(IndexError) as error:
        kvrope.check(device)
    check_fault_message(str(error.value), faults)
    assert kvrope.last_fault(device) is None
