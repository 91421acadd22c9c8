"""The two halves of the operation as Python functions, for engines that cannot fuse everything."""

from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import _C
from ._arguments import (
    call_operator,
    option_names,
    raise_as_type_error,
    require_bools,
    require_sequence,
    require_tensors,
)

_rope = torch.ops.kvrope.rope.default
_reshape_and_cache = torch.ops.kvrope.reshape_and_cache.default
_ROPE_OPTIONS = option_names(_rope)
_CACHE_OPTIONS = option_names(_reshape_and_cache)


def rope(
    q: Tensor,
    k: Optional[Tensor],
    pos: Tensor,
    cos_sin: Tensor,
    is_neox: bool,
    *,
    offs: Optional[Tensor] = None,
    rotary_dim: Optional[int] = None,
    rotary_dim_offset: int = 0,
    q_out: Optional[Tensor] = None,
    k_out: Optional[Tensor] = None,
    q_scale: Optional[Tensor] = None,
    mrope_section: Optional[Sequence[int]] = None,
    mrope_interleaved: bool = False,
    q_weight: Optional[Tensor] = None,
    k_weight: Optional[Tensor] = None,
    eps: float = 1e-6,
    weight_plus_one: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Rotate q, or q and k, by RoPE, in one launch: the first half of ``fused_qk_rope_reshape_and_cache``.

    a' = a cos - b sin, b' = b cos + a sin for each pair (RoFormer, arXiv:2104.09864), in fp32, rounded once. No row
    is padding here: every position must be in the table.

    Args:
        q: (T, QH, D), float16, bfloat16 or float32. T may be 0.
        k: (Tk, KH, D), dtype of q, Tk >= T, KH dividing QH: rows T.. are copied to k_out unrotated. Or None.
        pos: (T,), int32 or int64: position of each token; with mrope_section also (3, T), one row an axis.
        cos_sin: (P, R) or (P, 2R), float32, float16 or bfloat16: cosines, then sines.
        is_neox: pairs (i, i + R/2); False is GPT-J: (2i, 2i + 1).
        offs: (T,), int32 or int64, added to pos (on each axis).
        rotary_dim: R, even; D when None. The dims rotary_dim_offset .. +R are rotated, the others pass through.
        q_out, k_out: as q and k, q_out also in fp8; allocated when None; q and k themselves are allowed (in place).
        q_scale: (), (1,) or with k (KH,) float32 on the device, for a q_out in float8_e4m3fn or float8_e5m2:
            cast(x * (1 / q_scale)), query head h with the scale of its KV head; None = 1.
        mrope_section: multimodal RoPE (Qwen2-VL, arXiv:2409.12191): three sizes with sum R/2. Frequency i turns by the
            position on axis 0, 1 or 2 (time, height, width), one section after the other. With pos (T,) all are equal.
        mrope_interleaved: True takes axis i % 3 while that axis lasts, then 0 (Qwen3-VL).
        q_weight, k_weight: (D,), dtype of q or float32: RMSNorm of each head of q, of k or of both before the
            rotation, over all D dims of the rows below T: x / sqrt(mean(x^2) + eps) * weight, in float32.
        eps: see q_weight; at least 0.
        weight_plus_one: True multiplies by 1 + weight (Gemma); only with a weight.

    Returns:
        (q_out, k_out), shaped as q and k; k_out is None without k.

    Raises:
        ValueError: rank, shape, device, memory overlap or option that does not fit, named with what fits.
        TypeError: a dtype that does not fit, no tensor, or an option that is not True or False.
        IndexError: on the CPU, a position out of range, before anything is written. On CUDA such a row becomes NaN
            and the fault is recorded: see ``kvrope.last_fault`` and ``kvrope.check``.
    """
    if not (type(is_neox) is type(mrope_interleaved) is type(weight_plus_one) is bool):
        require_bools("rope", is_neox=is_neox, mrope_interleaved=mrope_interleaved)
        require_bools("rope", weight_plus_one=weight_plus_one)
    if mrope_section is not None:
        require_sequence("rope", "mrope_section", mrope_section)
    try:
        if q_out is None:
            q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if k_out is None and k is not None:
            k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        arguments = (
            q,
            k,
            pos,
            cos_sin,
            is_neox,
            offs,
            q_out,
            k_out,
            rotary_dim,
            rotary_dim_offset,
            q_scale,
            mrope_section,
            mrope_interleaved,
            q_weight,
            k_weight,
            eps,
            weight_plus_one,
        )
        if is_dynamo_compiling() or not _C.rope(*arguments):
            call_operator(_rope, arguments, _ROPE_OPTIONS)
    except (AttributeError, RuntimeError, TypeError) as error:  # torch's answer to what it cannot take
        require_tensors("rope", q=q, pos=pos, cos_sin=cos_sin)
        require_tensors("rope", True, k=k, offs=offs, q_out=q_out, k_out=k_out)
        require_tensors("rope", True, q_scale=q_scale, q_weight=q_weight, k_weight=k_weight)
        raise_as_type_error(error)
        raise
    return q_out, k_out


def reshape_and_cache(
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Optional[Tensor],
    v_scale: Optional[Tensor],
    flash_layout: bool,
    *,
    apply_scale: bool = True,
    swa_slot_mapping: Optional[Tensor] = None,
    kv_cache_dtype: str = "auto",
) -> None:
    """Write k and v into a paged KV cache, in one launch: the other half of ``fused_qk_rope_reshape_and_cache``.

    Scales divide, as in vLLM's function of this name; fp8 saturates, NaN stays NaN.
    After ``rope`` with the same arguments every bit of the caches is that of the fused call with
    ``match_unfused=True``.

    Args:
        k, v: (Tk, KH, D) and (Tk, KH, Dv), float16, bfloat16 or float32; k is final. Tk may be 0.
        key_cache, value_cache: updated in place. flash_layout: (NB, BS, KH, D) and (NB, BS, KH, Dv). Otherwise
            (NB, KH, D/x, BS, x), x a power of two, and (NB, KH, Dv, BS) or shuffled (NB, KH, BS/x, Dv, x).
            dtype of k, float8_e4m3fn, float8_e5m2, or uint8 with kv_cache_dtype naming the fp8 format.
        slot_mapping: (T_slot,), T_slot <= Tk, int32 or int64: slot = block * BS + offset. Negative: not cached.
        k_scale, v_scale: (), (1,) or (KH,) float32 on the device; stored = cast(x / scale); None = 1.
        flash_layout: see key_cache.
        apply_scale: False ignores k_scale and v_scale, whatever they are.
        swa_slot_mapping: (N,), int32 or int64: slot = swa_slot_mapping[slot]; negative: evicted, not cached.
        kv_cache_dtype: "auto", or for uint8 caches "fp8" = "fp8_e4m3", "fp8_e5m2".

    Raises:
        ValueError: rank, shape, device, memory overlap or option that does not fit, named with what fits.
        TypeError: a dtype that does not fit, no tensor, or an option that is not True or False.
        IndexError: on the CPU, a slot out of range, before anything is written. On CUDA such a row is not cached and
            the fault is recorded: see ``kvrope.last_fault`` and ``kvrope.check``.
    """
    name = "reshape_and_cache"
    if not type(flash_layout) is type(apply_scale) is bool:
        require_bools(name, flash_layout=flash_layout, apply_scale=apply_scale)
    if not apply_scale:
        k_scale = v_scale = None  # ignored, also what the schema would not take
    try:
        arguments = (
            k,
            v,
            key_cache,
            value_cache,
            slot_mapping,
            k_scale,
            v_scale,
            flash_layout,
            apply_scale,
            swa_slot_mapping,
            kv_cache_dtype,
        )
        if is_dynamo_compiling() or not _C.reshape_and_cache(*arguments):
            call_operator(_reshape_and_cache, arguments, _CACHE_OPTIONS)
    except (AttributeError, RuntimeError, TypeError) as error:  # torch's answer to what it cannot take
        require_tensors(name, k=k, v=v, key_cache=key_cache, value_cache=value_cache)
        require_tensors(name, slot_mapping=slot_mapping)
        require_tensors(name, True, k_scale=k_scale, v_scale=v_scale, swa_slot_mapping=swa_slot_mapping)
        raise_as_type_error(error)
        raise
