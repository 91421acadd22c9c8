"""The operation in double precision, written from the contract. It shares no code with the kernels.

Tokens, heads, dims and slots are indexed one idea at a time; nothing here knows a memory layout.
"""

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np
import torch


@dataclass
class Rows:
    """What (rows, heads, dims) elements should hold, before the last rounding to their dtype."""

    value: np.ndarray  # float64
    magnitude: np.ndarray  # float64: |a cos| + |b sin| of rotated elements, |x| of those that are normed
    # alone, else 0; bounds their error
    is_computed: np.ndarray  # bool: rotated or normed; the others are exact: correctly rounded, to the bit

    def copy(self) -> "Rows":
        return Rows(self.value.copy(), self.magnitude.copy(), self.is_computed.copy())

    def take(self, rows: list[int]) -> "Rows":
        return Rows(self.value[rows], self.magnitude[rows], self.is_computed[rows])


@dataclass(frozen=True)
class Fault:
    kind: str
    argument: str
    row: int
    value: int


@dataclass
class Expected:
    q_out: Rows | None  # T rows; None in the cache write alone
    k_out: Rows | None  # Tk rows; None in a rotation without k
    cached_rows: list[int]  # the rows of k and v that reach the caches ...
    slots: list[int]  # ... and the slot of each
    replaced_rows: list[int]  # rows whose position is not in the table: q_out and k_out are NaN or zero there
    faults: list[Fault]  # every fault; on the CPU the first one met is an error and nothing is written
    key_cache: Rows | None = None  # of cached_rows; None where keys_are_of_k_out
    value_cache: Rows | None = None
    keys_are_of_k_out: bool = False  # match_unfused: the cached key follows from the rounded one (keys_of)
    k_scale: torch.Tensor | None = None


def to_double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def to_integers(tensor: torch.Tensor) -> list[int]:
    return [int(i) for i in tensor.detach().cpu().tolist()]


def exact_rows(values: np.ndarray) -> Rows:
    return Rows(values.copy(), np.zeros_like(values), np.zeros(values.shape, dtype=bool))


def pair_of(i: int, rotary_dim: int, is_neox: bool) -> tuple[int, int]:
    return (i, i + rotary_dim // 2) if is_neox else (2 * i, 2 * i + 1)


def in_fp32_range(values: np.ndarray) -> np.ndarray:
    """Infinity and zero where fp32 has nothing else, which a scale cannot take back; otherwise not rounded."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = values.astype(np.float32).astype(np.float64)
    return np.where(np.isinf(rounded) | (rounded == 0), rounded, values)


def normed(x: np.ndarray, weight: np.ndarray, eps: float, plus_one: bool) -> Rows:
    """RMSNorm of each head of x (rows, heads, D). A sum of squares that no fp32 holds is infinite."""
    with np.errstate(all="ignore"):
        sums = np.square(x).sum(axis=-1, keepdims=True)
        sums = np.where(sums > np.finfo(np.float32).max, np.inf, sums)
        value = x / np.sqrt(sums / x.shape[-1] + eps) * (1.0 + weight if plus_one else weight)
    magnitude = np.where(np.isfinite(value), np.abs(value), 0.0)
    return Rows(value, magnitude, np.ones(x.shape, dtype=bool))


def axis_of(i: int, section: Sequence[int], is_interleaved: bool) -> int:
    """mRoPE: whether pair i takes its angle from the position's first, second or third axis."""
    if is_interleaved:
        return i % 3 if i % 3 > 0 and i < 3 * section[i % 3] else 0
    return 0 if i < section[0] else 1 if i < section[0] + section[1] else 2


def rotate(
    rows: Rows, table_rows: np.ndarray, axes: list[int], is_neox: bool, rotary_dim: int,
    rotary_dim_offset: int,
) -> Rows:  # fmt: skip
    """rows (rows, heads, D), table_rows (axes, rows, W): of each axis of a position; axes: each pair's."""
    x, rows = rows.value, rows.copy()
    is_full_width = table_rows.shape[2] == 2 * rotary_dim
    for i in range(rotary_dim // 2):
        angles = table_rows[axes[i]]
        j_a, j_b = pair_of(i, rotary_dim, is_neox)
        if is_full_width:  # element j of the rotated part takes columns j and R + j
            cos_a, sin_a = angles[:, j_a], angles[:, rotary_dim + j_a]
            cos_b, sin_b = angles[:, j_b], angles[:, rotary_dim + j_b]
        else:  # one cosine and one sine for each pair
            cos_a = cos_b = angles[:, i]
            sin_a = sin_b = angles[:, rotary_dim // 2 + i]
        cos_a, sin_a, cos_b, sin_b = (column[:, None] for column in (cos_a, sin_a, cos_b, sin_b))
        dim_a, dim_b = rotary_dim_offset + j_a, rotary_dim_offset + j_b
        a, b = x[:, :, dim_a], x[:, :, dim_b]
        with np.errstate(invalid="ignore"):
            rows.value[:, :, dim_a] = in_fp32_range(a * cos_a - in_fp32_range(b * sin_a))
            rows.value[:, :, dim_b] = in_fp32_range(b * cos_b + in_fp32_range(a * sin_b))
            rows.magnitude[:, :, dim_a] = np.abs(a * cos_a) + np.abs(b * sin_a)
            rows.magnitude[:, :, dim_b] = np.abs(b * cos_b) + np.abs(a * sin_b)
        rows.is_computed[:, :, [dim_a, dim_b]] = True
    return rows


def scaled(rows: Rows, scale: torch.Tensor | None) -> Rows:
    """x * (1 / scale), the reciprocal and an exact element's product rounded to fp32 as the contract says."""
    if scale is None:
        return rows
    with np.errstate(all="ignore"):
        scale_per_head = np.asarray(scale.detach().cpu().float().numpy()).reshape(-1, 1)
        reciprocal = np.float32(1.0) / scale_per_head
        exact = (rows.value.astype(np.float32) * reciprocal).astype(np.float64)
        value = np.where(rows.is_computed, rows.value * reciprocal.astype(np.float64), exact)
        magnitude = np.where(rows.is_computed, rows.magnitude * np.abs(reciprocal.astype(np.float64)), 0.0)
    return Rows(value, magnitude, rows.is_computed)


def divided(rows: Rows, scale: torch.Tensor | None) -> Rows:
    """x / scale of exact elements, a division in fp32: the halves and match_unfused."""
    if scale is None:
        return rows
    with np.errstate(all="ignore"):
        scale_per_head = np.asarray(scale.detach().cpu().float().numpy()).reshape(-1, 1)
        return exact_rows((rows.value.astype(np.float32) / scale_per_head).astype(np.float64))


def scale_of_query_heads(arguments: Mapping[str, Any]) -> torch.Tensor:
    """q_scale with one element, or one for each query head: that of its key head."""
    scale = arguments["q_scale"].reshape(-1)
    if scale.shape[0] == 1:
        return scale
    return scale.repeat_interleave(arguments["q"].shape[1] // arguments["k"].shape[1])


def capacity(key_cache: torch.Tensor, flash_layout: bool) -> int:
    return key_cache.shape[0] * key_cache.shape[1 if flash_layout else 3]


@dataclass
class SlotOfRow:
    slot: int | None = None  # where the row goes, if anywhere
    fault: Fault | None = None  # a row without slot and fault is padding


def slot_of_row(row: int, slots: list[int], window: list[int] | None, num_slots: int) -> SlotOfRow:
    if row >= len(slots) or slots[row] < 0:
        return SlotOfRow()
    slot = slots[row]
    limit = num_slots if window is None else len(window)
    if slot >= limit:
        return SlotOfRow(fault=Fault("slot_out_of_range", "slot_mapping", row, slot))
    if window is None:
        return SlotOfRow(slot)
    if window[slot] < 0:
        return SlotOfRow()
    if window[slot] >= num_slots:
        return SlotOfRow(fault=Fault("window_slot_out_of_range", "swa_slot_mapping", row, window[slot]))
    return SlotOfRow(window[slot])


def positions_of(arguments: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Of each row: one position, or one for each axis."""
    pos = arguments["pos"]
    axes = [to_integers(axis) for axis in (pos if pos.dim() == 2 else [pos])]
    if arguments.get("offs") is not None:
        offs = to_integers(arguments["offs"])
        axes = [[p + o for p, o in zip(axis, offs, strict=True)] for axis in axes]
    return list(zip(*axes, strict=True))


def outside(position: tuple[int, ...], table_rows: int) -> int | None:
    """The first axis's position that the table does not have."""
    return next((p for p in position if not 0 <= p < table_rows), None)


def places_of_rows(arguments: Mapping[str, Any], num_rows: int) -> list[SlotOfRow]:
    window = arguments.get("swa_slot_mapping")
    window = None if window is None else to_integers(window)
    slots = to_integers(arguments["slot_mapping"])
    num_slots = capacity(arguments["key_cache"], arguments["flash_layout"])
    return [slot_of_row(row, slots, window, num_slots) for row in range(num_rows)]


def normed_rows(arguments: Mapping[str, Any], x: np.ndarray, weight: torch.Tensor | None) -> Rows:
    if weight is None:
        return exact_rows(x)
    eps, plus_one = arguments.get("eps", 1e-6), arguments.get("weight_plus_one", False)
    return normed(x, to_double(weight), eps, plus_one)


def rotated_rows(
    arguments: Mapping[str, Any], x: np.ndarray, weight: torch.Tensor | None, positions: list[tuple[int, ...]]
) -> Rows:
    """The rows that have a position are normed and rotated, those past them are final already."""
    table = to_double(arguments["cos_sin"])
    has_axes = arguments["pos"].dim() == 2
    table_rows = np.full((3 if has_axes else 1, len(positions), table.shape[1]), np.nan)
    for row, position in enumerate(positions):
        if outside(position, table.shape[0]) is None:
            table_rows[:, row] = table[list(position)]
    rotary_dim = x.shape[2] if arguments.get("rotary_dim") is None else arguments["rotary_dim"]
    axes = [0] * (rotary_dim // 2)
    if has_axes:
        section, is_interleaved = arguments["mrope_section"], arguments.get("mrope_interleaved", False)
        axes = [axis_of(i, section, is_interleaved) for i in range(rotary_dim // 2)]
    style = (arguments["is_neox"], rotary_dim, arguments.get("rotary_dim_offset", 0))
    normed_x, rows = normed_rows(arguments, x[: len(positions)], weight), exact_rows(x)
    rotated = rotate(normed_x, table_rows, axes, *style)
    rows.value[: len(positions)] = rotated.value
    rows.magnitude[: len(positions)] = rotated.magnitude
    rows.is_computed[: len(positions)] = rotated.is_computed
    return rows


def expect(arguments: Mapping[str, Any]) -> Expected:
    """Everything a call should do, from its arguments as they are before the call.

    Of the fused call or of one of its halves, which has none of the other half's arguments.
    """
    rotates, writes = "q" in arguments, "key_cache" in arguments
    k = None if arguments["k"] is None else to_double(arguments["k"])
    positions = positions_of(arguments) if rotates else []
    num_rows = len(positions) if k is None else k.shape[0]
    places = places_of_rows(arguments, num_rows) if writes else [None] * num_rows
    table_rows = arguments["cos_sin"].shape[0] if rotates else 0
    lost = [outside(position, table_rows) for position in positions]
    q_weight, k_weight = arguments.get("q_weight"), arguments.get("k_weight")
    q_out = rotated_rows(arguments, to_double(arguments["q"]), q_weight, positions) if rotates else None
    if arguments.get("q_scale") is not None:
        q_out = scaled(q_out, scale_of_query_heads(arguments))
    if k is None:
        k_out = None
    else:
        k_out = rotated_rows(arguments, k, k_weight, positions) if rotates else exact_rows(k)

    faults = []
    cached_rows = []
    for row, place in enumerate(places):
        has_position = row >= len(positions) or lost[row] is None
        is_padding = place is not None and place.slot is None and place.fault is None
        if not has_position:
            for output in (q_out, k_out):
                if output is not None:
                    output.value[row] = 0.0 if is_padding else np.nan
                    output.magnitude[row] = 0.0
                    output.is_computed[row] = False
            if not is_padding:
                faults.append(Fault("position_out_of_range", "pos", row, lost[row]))
        if place is not None and place.fault is not None:
            faults.append(place.fault)
        elif place is not None and place.slot is not None and has_position:
            cached_rows.append(row)

    expected = Expected(
        q_out=q_out,
        k_out=k_out,
        cached_rows=cached_rows,
        slots=[places[row].slot for row in cached_rows],
        replaced_rows=[row for row, position in enumerate(lost) if position is not None],
        faults=faults,
    )
    if writes:
        add_caches(expected, arguments, not rotates)
    return expected


def add_caches(expected: Expected, arguments: Mapping[str, Any], is_alone: bool) -> None:
    apply_scale = arguments.get("apply_scale", True)
    expected.k_scale = arguments.get("k_scale") if apply_scale else None
    v_scale = arguments.get("v_scale") if apply_scale else None
    expected.keys_are_of_k_out = arguments.get("match_unfused", False)
    stored = divided if is_alone or expected.keys_are_of_k_out else scaled
    v = exact_rows(to_double(arguments["v"])).take(expected.cached_rows)
    expected.value_cache = stored(v, v_scale)
    if not expected.keys_are_of_k_out:
        expected.key_cache = stored(expected.k_out.take(expected.cached_rows), expected.k_scale)


def keys_of(expected: Expected, k_out: np.ndarray) -> Rows:
    """Under match_unfused: what the key cache holds, to the bit, of the k_out that the call left."""
    return divided(exact_rows(k_out).take(expected.cached_rows), expected.k_scale)
