"""The operation composed from torch's own operations, in fp32: slow, short, for valid input.

It holds the oracle to a second opinion, and broken versions of it hold the comparison to its word.
"""

from typing import Any

import torch


def rotate(x: torch.Tensor, angles: torch.Tensor, is_neox: bool, rotary_dim: int, start: int) -> torch.Tensor:
    part = x[..., start : start + rotary_dim].float()
    cos, sin = (half.float().unsqueeze(1) for half in angles.chunk(2, dim=-1))
    if cos.shape[-1] != rotary_dim:
        cos, sin = (
            torch.cat((half, half), -1) if is_neox else half.repeat_interleave(2, -1) for half in (cos, sin)
        )
    if is_neox:
        first, second = part.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        turned = torch.stack((-part[..., 1::2], part[..., 0::2]), dim=-1).flatten(-2)
    out = x.float().clone()
    out[..., start : start + rotary_dim] = part * cos + turned * sin
    return out


def angles_of(
    cos_sin: torch.Tensor, positions: torch.Tensor, section: Any, is_interleaved: bool, is_neox: bool,
    half: int,
) -> torch.Tensor:  # fmt: skip
    """(T, W) of positions (T,) or (3, T); half is the number of pairs."""
    if positions.dim() == 1:
        return cos_sin[positions]
    axes = torch.arange(3).repeat_interleave(torch.tensor(section))
    if is_interleaved:
        axes = torch.zeros(half, dtype=torch.int64)
        for axis in (1, 2):
            axes[axis : 3 * section[axis] : 3] = axis
    if cos_sin.shape[1] == 4 * half:  # one column for each element
        axes = torch.cat((axes, axes)) if is_neox else axes.repeat_interleave(2)
    axes = torch.cat((axes, axes))  # cosines, sines
    return cos_sin[positions].gather(0, axes.expand(1, positions.shape[1], -1))[0]


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, plus_one: bool) -> torch.Tensor:
    if weight is None:
        return x
    weight = 1.0 + weight.float() if plus_one else weight.float()
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight, eps)


def store(
    rows: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None, divides: bool
) -> torch.Tensor:
    if scale is not None:
        scale = scale.float().reshape(-1, 1)
        rows = rows.float() / scale if divides else rows.float() * (1.0 / scale)
    if cache.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(cache.dtype).max
        rows = rows.float().clamp(-largest, largest)
    return rows.to(cache.dtype)


def fused_qk_rope_reshape_and_cache(
    q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, v_scale, is_neox, flash_layout,
    apply_scale=True, offs=None, q_out=None, k_out=None, output_zeros=True, zeros_out=None,
    swa_slot_mapping=None, *, rotary_dim=None, rotary_dim_offset=0, kv_cache_dtype="auto",
    q_scale=None, match_unfused=False, mrope_section=None, mrope_interleaved=False, q_weight=None,
    k_weight=None, eps=1e-6, weight_plus_one=False,
) -> Any:  # fmt: skip
    num_tokens = q.shape[0]
    rotary_dim = q.shape[2] if rotary_dim is None else rotary_dim
    positions = pos.long() if offs is None else pos.long() + offs.long()
    mrope = (mrope_section, mrope_interleaved, is_neox, rotary_dim // 2)
    style = (angles_of(cos_sin, positions, *mrope), is_neox, rotary_dim, rotary_dim_offset)
    rotated_q = rotate(norm(q, q_weight, eps, weight_plus_one), *style)
    normed_k = norm(k[:num_tokens], k_weight, eps, weight_plus_one)
    rotated_k = torch.cat((rotate(normed_k, *style), k[num_tokens:].float()))
    q_out = torch.empty(q.shape, dtype=q.dtype) if q_out is None else q_out
    k_out = torch.empty(k.shape, dtype=k.dtype) if k_out is None else k_out
    zeros_out = torch.empty(q.shape, dtype=q.dtype) if zeros_out is None and output_zeros else zeros_out
    if q_scale is not None and q_scale.numel() > 1:
        q_scale = q_scale.repeat_interleave(q.shape[1] // k.shape[1])
    q_out.copy_(store(rotated_q, q_out, q_scale, False))
    k_out.copy_(rotated_k)

    slots = slot_mapping.long()
    rows = torch.nonzero(slots >= 0).flatten()
    slots = slots[rows]
    if swa_slot_mapping is not None:
        slots = swa_slot_mapping.long()[slots]
        rows, slots = rows[slots >= 0], slots[slots >= 0]
    scales = (k_scale, v_scale) if apply_scale else (None, None)
    block_size = key_cache.shape[1 if flash_layout else 3]
    block, offset = slots // block_size, slots % block_size
    keys = k_out if match_unfused else rotated_k
    key_rows = store(keys[rows], key_cache, scales[0], match_unfused)
    value_rows = store(v[rows], value_cache, scales[1], match_unfused)
    if flash_layout:
        key_cache[block, offset] = key_rows
        value_cache[block, offset] = value_rows
    else:
        key_cache[block, :, :, offset] = key_rows.unflatten(-1, (key_cache.shape[2], key_cache.shape[4]))
        if value_cache.dim() == 4:
            value_cache[block, :, :, offset] = value_rows
        else:
            x = value_cache.shape[4]
            value_cache[block, :, offset // x, :, offset % x] = value_rows
    results = (q_out.view(num_tokens, -1), k_out, key_cache, value_cache)
    if zeros_out is None:
        return results
    return (*results, zeros_out.zero_())
