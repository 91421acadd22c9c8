"""The operation as PyTorch statements, eager and compiled."""

from functools import partial
from types import SimpleNamespace
from typing import Callable, Dict, Tuple

import torch

from .peer import Bound, Peer
from .peer_call import Call

SIZES = (
    "rotary_dim",
    "head_dim",
    "block_size",
    "is_neox",
    "is_fp8",
    "is_flash",
    "layout",
    "x",
    "cache_dtype",
)
TENSORS = (
    "q",
    "k",
    "v",
    "q_out",
    "k_out",
    "key_cache",
    "value_cache",
    "slots",
    "positions",
    "table",
    "k_scale",
    "v_scale",
)


def _rotate(
    sizes: SimpleNamespace, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor
) -> None:
    part = x[..., : sizes.rotary_dim].float()
    a, b = part.chunk(2, dim=-1) if sizes.is_neox else (part[..., 0::2], part[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    part = torch.cat([a, b], dim=-1) if sizes.is_neox else torch.stack([a, b], dim=-1).flatten(-2)
    out[..., : sizes.rotary_dim] = part.to(out.dtype)
    if sizes.rotary_dim < sizes.head_dim:
        out[..., sizes.rotary_dim :] = x[..., sizes.rotary_dim :]


def compose(sizes, q, k, v, q_out, k_out, keys, values, slots, positions, table, k_scale, v_scale) -> None:
    """The operation as PyTorch statements."""
    cos, sin = table[positions][:, None].chunk(2, dim=-1)
    _rotate(sizes, q, cos, sin, q_out)
    _rotate(sizes, k, cos, sin, k_out)
    key = (k_out if k_scale is None else k_out.float() / k_scale).to(sizes.cache_dtype)
    value = (v if v_scale is None else v.float() / v_scale).to(sizes.cache_dtype)
    if sizes.is_fp8:  # indexing has no fp8 kernels
        key, value, keys, values = (x.view(torch.uint8) for x in (key, value, keys, values))
    block, offset = slots // sizes.block_size, slots % sizes.block_size
    if sizes.is_flash:
        keys[block, offset] = key
        values[block, offset] = value
        return
    keys[block, :, :, offset] = key.unflatten(-1, (-1, sizes.x))
    if sizes.layout == "x_split":
        values[block, :, :, offset] = value
    else:
        values[block, :, offset // sizes.x, :, offset % sizes.x] = value


class Eager(Peer):
    name = "torch eager"

    def bind(self, call: Call) -> Bound:
        return partial(
            compose,
            SimpleNamespace(**{name: getattr(call, name) for name in SIZES}),
            *(getattr(call, name) for name in TENSORS),
        )


class Compiled(Peer):
    """torch.compile of the same: sizes of heads and pages are constants, numbers of tokens and blocks are not."""

    name = "torch compiled"

    def __init__(self) -> None:
        torch._dynamo.config.recompile_limit = 64
        self._functions: Dict[Tuple, Callable] = {}

    def bind(self, call: Call) -> Bound:
        sizes = {name: getattr(call, name) for name in SIZES}
        key = (*sizes.values(), call.dtype, call.slots.dtype, call.positions.dtype)
        if key not in self._functions:
            self._functions[key] = torch.compile(partial(compose, SimpleNamespace(**sizes)), fullgraph=True)
        return partial(self._functions[key], *(getattr(call, name) for name in TENSORS))
