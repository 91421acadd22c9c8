"""The tensors of one call, as each peer wants them, and what they must hold after it."""

import math
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch

from .peer_cases import Case

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int32": torch.int32,
    "int64": torch.int64,
}
CANARY = 0x5A  # of every byte of the caches before a call


class Bytes(NamedTuple):
    """What a call must move, whoever moves it."""

    rows_read: int
    rows_written: int
    indices: int

    @property
    def rows(self) -> int:
        return self.rows_read + self.rows_written

    @property
    def all(self) -> int:
        return self.rows + self.indices

    def describe(self) -> Dict[str, int]:
        return {"all": self.all, **self._asdict()}


class Call:
    """One set of tensors. `table` is shared where another call's is given."""

    def __init__(self, case: Case, device: str, table: Optional[torch.Tensor] = None):
        self.case, self.device = case, torch.device(device)
        self.tokens, self.q_heads = case.get("num_tokens", 5), case.get("q_heads", 8)
        self.kv_heads, self.head_dim = case.get("kv_heads", 2), case.get("head_dim", 64)
        self.rotary_dim, self.block_size = case.get("rotary_dim", self.head_dim), case.get("block_size", 16)
        self.layout, self.is_neox = case.get("layout", "flash_nhd"), case.get("style", "neox") == "neox"
        self.is_fp8 = case.get("kv_cache_dtype", "auto") == "fp8_e4m3"
        self.dtype = DTYPES[case.get("dtype", "bf16")]
        self.cache_dtype = torch.float8_e4m3fn if self.is_fp8 else self.dtype
        self.x = 16 // self.cache_dtype.itemsize
        self.q_out_dtype = DTYPES.get(case.get("q_out_dtype", "auto"), self.dtype)
        section = case.get("mrope.section", None)
        self.mrope_section = None if section is None else tuple(section)
        self.mrope_interleaved = case.get("mrope.interleaved", False)
        self._generator = torch.Generator().manual_seed(case.get("seed", 0))
        self._make_indices()
        self.table = self._make_table() if table is None else table
        self._make_weights()
        self._make_rows()
        self._make_caches()

    def _make_indices(self) -> None:
        pattern = self.case.get("slots.pattern", "sequential")
        blocks_needed = -(-self.tokens // self.block_size)
        self.num_blocks = blocks_needed + 2
        if pattern == "random":
            slots = torch.randperm(self.num_blocks * self.block_size, generator=self._generator)[
                : self.tokens
            ]
        else:
            blocks = torch.arange(self.num_blocks)
            if pattern == "blocks":
                blocks = torch.randperm(self.num_blocks, generator=self._generator)
            rows = torch.arange(self.tokens)
            slots = blocks[rows // self.block_size] * self.block_size + rows % self.block_size
        start = self.case.get("positions.start", 0)
        self.table_rows = self.case.get("table.rows", max(256, start + self.tokens))
        is_random = self.case.get("positions.pattern", "contiguous") == "random"
        axes = 1 if self.mrope_section is None else 3
        # An image has few rows and columns.
        limit = self.table_rows if is_random else min(self.table_rows, 256)
        positions = torch.randint(0, limit, (axes, self.tokens), generator=self._generator)
        if not is_random:
            positions[0] = start + torch.arange(self.tokens)
        if axes == 1:
            positions = positions[0]
        self.slots = slots.to(self.device, DTYPES[self.case.get("slots.dtype", "int64")])
        self.positions = positions.to(self.device, DTYPES[self.case.get("positions.dtype", "int64")])

    def _make_table(self) -> torch.Tensor:
        exponents = torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim
        angles = (
            torch.arange(self.table_rows).float()[:, None] / self.case.get("table.base", 10000) ** exponents
        )
        return torch.cat([angles.cos(), angles.sin()], dim=1).to(self.device)

    def _make_weights(self) -> None:
        is_normed = "norm" in self.case.keys
        self.eps = float(self.case.get("norm.eps", 1e-6))
        self.weight_plus_one = self.case.get("norm.plus_one", False)
        dtype = DTYPES.get(self.case.get("norm.weight_dtype", "auto"), self.dtype)

        def weight(name: str) -> Optional[torch.Tensor]:
            if not is_normed or not self.case.get(f"norm.{name}", True):
                return None
            around = 0 if self.weight_plus_one else 1
            return (around + torch.randn(self.head_dim, device=self.device) / 4).to(dtype)

        self.q_weight, self.k_weight = weight("q"), weight("k")

    def _make_rows(self) -> None:
        def rows(heads: int, is_normed: bool = False) -> torch.Tensor:
            values = torch.randn(self.tokens, heads, self.head_dim, device=self.device)
            if is_normed:  # of sizes that a norm takes away
                values *= 0.5 + 4 * torch.rand(self.tokens, heads, 1, device=self.device)
            return values.to(self.dtype)

        self.q = rows(self.q_heads, self.q_weight is not None)
        self.k, self.v = rows(self.kv_heads, self.k_weight is not None), rows(self.kv_heads)
        self.q_out, self.k_out = torch.empty_like(self.q, dtype=self.q_out_dtype), torch.empty_like(self.k)
        scales = [self.case.get(f"scales.{name}", None) for name in "kvq"]
        self.k_scale, self.v_scale, self.q_scale = (
            None if scale is None else torch.tensor(float(scale), device=self.device) for scale in scales
        )

    def _make_caches(self) -> None:
        blocks, size, heads, dim = self.num_blocks, self.block_size, self.kv_heads, self.head_dim

        def filled(*shape: int) -> torch.Tensor:
            count = math.prod(shape) * self.cache_dtype.itemsize
            return (
                torch.full((count,), CANARY, dtype=torch.uint8, device=self.device)
                .view(self.cache_dtype)
                .view(shape)
            )

        if self.layout == "packed_kv":  # the K and the V of a block side by side
            pages = filled(blocks, 2, size, heads, dim)
            self.key_cache, self.value_cache = pages[:, 0], pages[:, 1]
        elif self.layout == "flash_hnd":
            self.key_cache, self.value_cache = (
                filled(blocks, heads, size, dim).transpose(1, 2) for _ in range(2)
            )
        elif self.layout == "flash_nhd":
            self.key_cache, self.value_cache = (filled(blocks, size, heads, dim) for _ in range(2))
        else:
            self.key_cache = filled(blocks, heads, dim // self.x, size, self.x)
            shuffled = self.layout == "x_split_shuffle"
            shape = (blocks, heads, size // self.x, dim, self.x) if shuffled else (blocks, heads, dim, size)
            self.value_cache = filled(*shape)

    @property
    def is_flash(self) -> bool:
        return not self.layout.startswith("x_split")

    @property
    def is_normed(self) -> bool:
        return self.q_weight is not None or self.k_weight is not None

    def axes(self) -> torch.Tensor:
        """The axis of positions that each frequency takes."""
        frequencies = torch.arange(self.rotary_dim // 2, device=self.device)
        if self.mrope_section is None:
            return torch.zeros_like(frequencies)
        if not self.mrope_interleaved:
            first, second, _ = self.mrope_section
            return (frequencies >= first).long() + (frequencies >= first + second)
        axes = frequencies % 3
        return axes.where(frequencies < 3 * torch.tensor(self.mrope_section, device=self.device)[axes], 0)

    def _table_bytes(self) -> int:
        """Of the rows that an axis of positions names, the columns of its frequencies."""
        axes = self.axes()
        elements = sum(
            positions.unique().numel() * int((axes == axis).sum()) * 2
            for axis, positions in enumerate(torch.atleast_2d(self.positions))
        )
        return elements * self.table.itemsize

    def bytes(self) -> Bytes:
        def moved(*tensors: Optional[torch.Tensor]) -> int:
            return sum(x.numel() * x.itemsize for x in tensors if x is not None)

        cached = (self.k.numel() + self.v.numel()) * self.cache_dtype.itemsize
        return Bytes(
            moved(self.q, self.k, self.v),
            moved(self.q_out, self.k_out) + cached,
            moved(self.slots, self.positions, self.q_weight, self.k_weight) + self._table_bytes(),
        )

    def held_bytes(self) -> int:
        """Memory of one set, without the table."""
        tensors = (self.q, self.k, self.v, self.q_out, self.k_out, self.slots, self.positions)
        cache = (
            self.num_blocks * self.block_size * self.kv_heads * self.head_dim * 2 * self.cache_dtype.itemsize
        )
        return sum(x.numel() * x.itemsize for x in tensors) + cache

    def cached_rows(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """K and V of the tokens' slots, read back from the caches."""
        slots = self.slots.long()
        block, offset = slots // self.block_size, slots % self.block_size
        keys, values = (
            cache.view(torch.uint8).unflatten(-1, (-1, self.cache_dtype.itemsize))
            for cache in (self.key_cache, self.value_cache)
        )
        if self.is_flash:
            keys, values = keys[block, offset], values[block, offset]
        else:
            keys = keys[block, :, :, offset].flatten(2, 3)
            if self.layout == "x_split":
                values = values[block, :, :, offset]
            else:
                values = values[block, :, offset // self.x, :, offset % self.x]
        return tuple(x.contiguous().flatten(-2).view(self.cache_dtype) for x in (keys, values))

    def changed_slots(self) -> int:
        """Slots that no longer hold the canary."""
        keys = self.key_cache.view(torch.uint8) != CANARY
        if self.is_flash:
            return int(keys.flatten(2).any(-1).sum())
        return int(keys.any(-1).any(2).any(1).sum())


def normed(call: Call, x: torch.Tensor, weight: Optional[torch.Tensor]) -> torch.Tensor:
    """In double precision; without a weight there is no norm."""
    x = x.double()
    if weight is None:
        return x
    factor = weight.double() + (1 if call.weight_plus_one else 0)
    return x / (x.square().mean(-1, keepdim=True) + call.eps).sqrt() * factor


def rotated(call: Call, x: torch.Tensor) -> torch.Tensor:
    """In double precision."""
    rows = torch.atleast_2d(call.positions.long())[call.axes()].mT  # of each token and frequency
    columns = torch.arange(rows.shape[1], device=rows.device)
    cos, sin = (call.table[rows, columns + start].double()[:, None] for start in (0, rows.shape[1]))
    part, rest = x.double().split([call.rotary_dim, call.head_dim - call.rotary_dim], dim=-1)
    a, b = part.chunk(2, dim=-1) if call.is_neox else (part[..., 0::2], part[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    part = torch.cat([a, b], dim=-1) if call.is_neox else torch.stack([a, b], dim=-1).flatten(-2)
    return torch.cat([part, rest], dim=-1)


class Wanted:
    """What the call must leave; taken before it, since some peers work in place."""

    def __init__(self, call: Call):
        self.inputs = [x.clone() for x in (call.q, call.k, call.v)]
        self.q_out = rotated(call, normed(call, call.q, call.q_weight))
        self.q_out /= 1 if call.q_scale is None else call.q_scale.double()
        self.k_out = rotated(call, normed(call, call.k, call.k_weight))
        self.key = self.k_out / (1 if call.k_scale is None else call.k_scale.double())
        self.value = call.v.double() / (1 if call.v_scale is None else call.v_scale.double())

    def restore(self, call: Call) -> None:
        for tensor, value in zip((call.q, call.k, call.v), self.inputs):
            tensor.copy_(value)
        for tensor in (call.q_out, call.k_out):
            tensor.fill_(math.nan)
        for cache in (call.key_cache, call.value_cache):
            cache.view(torch.uint8).fill_(CANARY)

    def complaints(self, call: Call, in_place: bool, loose: bool) -> List[str]:
        """`loose` is for peers with a 16-bit table: errors of the table, not of the rotation."""
        q_out, k_out = (call.q, call.k) if in_place else (call.q_out, call.k_out)
        key, value = call.cached_rows()
        relative = torch.finfo(call.dtype).eps * (4 if loose else 1)
        of_q, slack_of_q = relative, 0.0
        if call.q_out_dtype != call.dtype:  # fp8, rounded once: half a unit of its last place
            of_q = torch.finfo(call.q_out_dtype).eps * 0.51
            slack_of_q = torch.finfo(call.q_out_dtype).smallest_normal * of_q
        of_cache = 2.0**-3 if call.is_fp8 else relative
        found = []
        slack_of_cache = 2.0**-8 if call.is_fp8 else 0.0
        for name, got, want, tolerance, slack in (
            ("q_out", q_out, self.q_out, of_q, slack_of_q),
            ("k_out", k_out, self.k_out, relative, 0.0),
            ("key_cache", key, self.key, of_cache, slack_of_cache),
            ("value_cache", value, self.value, of_cache, slack_of_cache),
        ):
            error = (got.double() - want).abs() - tolerance * want.abs()
            slack += 0.02 if loose else 1e-5
            bad = ~(error <= slack)  # NaN is bad too
            if bad.any():
                found.append(f"{name}: {int(bad.sum())} of {bad.numel()} elements are off")
        changed, written = call.changed_slots(), call.slots.numel()
        if changed > written:
            found.append(f"key_cache: {changed} slots have changed, {written} were to")
        return found
