"""The operation as PyTorch statements, eager and compiled."""

from functools import partial
from types import SimpleNamespace
from typing import Callable, Dict, Optional, Tuple

import torch
from torch.nn.functional import rms_norm

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
    "mrope_section",
    "mrope_interleaved",
    "eps",
    "weight_plus_one",
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
    "q_scale",
    "q_weight",
    "k_weight",
)


def _angles(sizes: SimpleNamespace, positions: torch.Tensor, table: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Cosines and sines of each token and frequency, for all heads."""
    halves = table[positions].chunk(2, dim=-1)
    if sizes.mrope_section is not None:
        take = _interleaved_axes if sizes.mrope_interleaved else _axes_in_turn
        halves = tuple(take(sizes.mrope_section, half) for half in halves)
    return tuple(half[:, None] for half in halves)


def _axes_in_turn(section: Tuple[int, ...], half: torch.Tensor) -> torch.Tensor:
    return torch.cat([part[axis] for axis, part in enumerate(half.split(section, dim=-1))], dim=-1)


def _interleaved_axes(section: Tuple[int, ...], half: torch.Tensor) -> torch.Tensor:
    taken = half[0].clone()
    for axis in (1, 2):
        columns = slice(axis, 3 * section[axis], 3)
        taken[..., columns] = half[axis, ..., columns]
    return taken


def _norm(sizes: SimpleNamespace, x: torch.Tensor, weight: Optional[torch.Tensor]) -> torch.Tensor:
    if weight is None:
        return x
    weight = weight.float() + 1 if sizes.weight_plus_one else weight.float()
    return rms_norm(x.float(), (sizes.head_dim,), weight, sizes.eps)


def _rotate(
    sizes: SimpleNamespace,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: torch.Tensor,
    scale: Optional[torch.Tensor] = None,
) -> None:
    rest = x[..., sizes.rotary_dim :]
    part = x[..., : sizes.rotary_dim].float()
    a, b = part.chunk(2, dim=-1) if sizes.is_neox else (part[..., 0::2], part[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    part = torch.cat([a, b], dim=-1) if sizes.is_neox else torch.stack([a, b], dim=-1).flatten(-2)
    if scale is not None:
        part, rest = part / scale, rest.float() / scale
    out[..., : sizes.rotary_dim] = part.to(out.dtype)
    if sizes.rotary_dim < sizes.head_dim:
        out[..., sizes.rotary_dim :] = rest.to(out.dtype)


def compose(
    sizes: SimpleNamespace,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    k_scale: Optional[torch.Tensor],
    v_scale: Optional[torch.Tensor],
    q_scale: Optional[torch.Tensor],
    q_weight: Optional[torch.Tensor],
    k_weight: Optional[torch.Tensor],
) -> None:
    """The operation as PyTorch statements; between the norm and the rotation nothing is rounded."""
    cos, sin = _angles(sizes, positions, table)
    _rotate(sizes, _norm(sizes, q, q_weight), cos, sin, q_out, q_scale)
    _rotate(sizes, _norm(sizes, k, k_weight), cos, sin, k_out)
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
        key = (*sizes.values(), call.dtype, call.q_out_dtype, call.slots.dtype, call.positions.dtype)
        if key not in self._functions:
            self._functions[key] = torch.compile(partial(compose, SimpleNamespace(**sizes)), fullgraph=True)
        return partial(self._functions[key], *(getattr(call, name) for name in TENSORS))
