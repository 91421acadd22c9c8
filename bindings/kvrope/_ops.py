"""The operation as a Python function: outputs are allocated where omitted, then the torch operator is called."""

from typing import Optional, Sequence, Tuple, Union

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

_NAME = "fused_qk_rope_reshape_and_cache"
_operator = torch.ops.kvrope.fused_qk_rope_reshape_and_cache.default
_OPTIONS = option_names(_operator)


def fused_qk_rope_reshape_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos_sin: Tensor,
    k_scale: Optional[Tensor],
    v_scale: Optional[Tensor],
    is_neox: bool,
    flash_layout: bool,
    apply_scale: bool = True,
    offs: Optional[Tensor] = None,
    q_out: Optional[Tensor] = None,
    k_out: Optional[Tensor] = None,
    output_zeros: bool = True,
    zeros_out: Optional[Tensor] = None,
    swa_slot_mapping: Optional[Tensor] = None,
    *,
    rotary_dim: Optional[int] = None,
    rotary_dim_offset: int = 0,
    kv_cache_dtype: str = "auto",
    q_scale: Optional[Tensor] = None,
    match_unfused: bool = False,
    mrope_section: Optional[Sequence[int]] = None,
    mrope_interleaved: bool = False,
    q_weight: Optional[Tensor] = None,
    k_weight: Optional[Tensor] = None,
    eps: float = 1e-6,
    weight_plus_one: bool = False,
) -> Union[Tuple[Tensor, Tensor, Tensor, Tensor], Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Rotate q and k by RoPE and write rotated k and unchanged v into a paged KV cache, in one launch.

    a' = a cos - b sin, b' = b cos + a sin for each pair (RoFormer, arXiv:2104.09864), in fp32, rounded once. Name,
    positional arguments and results are those of AITER's Triton kernel of the operation.

    T rows of q; Tk >= T rows of k and v, of which T..Tk-1 are KV-only (final already, not rotated); T_slot <= Tk
    slots; QH query heads, a multiple of the KH key and value heads; even head size D and any Dv, up to 512;
    R = rotary_dim. All tensors on one device (CPU or CUDA), each with any strides.

    Args:
        q: (T, QH, D), float16, bfloat16 or float32. T may be 0.
        k, v: (Tk, KH, D) and (Tk, KH, Dv), dtype of q.
        key_cache, value_cache: updated in place. flash_layout: (NB, BS, KH, D) and (NB, BS, KH, Dv). Otherwise
            (NB, KH, D/x, BS, x), x a power of two, and (NB, KH, Dv, BS) or shuffled (NB, KH, BS/x, Dv, x).
            dtype of k, float8_e4m3fn, float8_e5m2, or uint8 with kv_cache_dtype naming the fp8 format.
        slot_mapping: (T_slot,), int32 or int64: slot = block * BS + offset. Negative: padding, not cached.
        pos: (T,), int32 or int64: position of each token; with mrope_section also (3, T), one row an axis.
        cos_sin: (P, R) or (P, 2R), float32, float16 or bfloat16: cosines, then sines.
        k_scale, v_scale: (), (1,) or (KH,) float32 on the device; stored = cast(x * (1 / scale)); None = 1.
        is_neox: pairs (i, i + R/2); False is GPT-J: (2i, 2i + 1).
        flash_layout: see key_cache.
        apply_scale: False ignores k_scale and v_scale, whatever they are.
        offs: (T,), int32 or int64, added to pos (on each axis).
        q_out, k_out: as q and k, q_out also in fp8; allocated when None; q and k themselves are allowed (in place).
        output_zeros, zeros_out: a tensor like q filled with zeros; allocated when None and output_zeros.
        swa_slot_mapping: (N,), int32 or int64: slot = swa_slot_mapping[slot]; negative: evicted, not cached.
        rotary_dim: R, even; D when None. The dims rotary_dim_offset .. +R are rotated, the others pass through.
        kv_cache_dtype: "auto", or for uint8 caches "fp8" = "fp8_e4m3", "fp8_e5m2".
        match_unfused: round k to its dtype before the cache and store cast(x / scale): every bit is then that of
            ``rope`` followed by ``reshape_and_cache``.
        q_scale: (), (1,) or (KH,) float32 on the device, for a q_out in float8_e4m3fn or float8_e5m2:
            cast(x * (1 / q_scale)), query head h with the scale of its KV head; None = 1.
        mrope_section: multimodal RoPE (Qwen2-VL, arXiv:2409.12191): three sizes with sum R/2. Frequency i turns by the
            position on axis 0, 1 or 2 (time, height, width), one section after the other. With pos (T,) all are equal.
        mrope_interleaved: True takes axis i % 3 while that axis lasts, then 0 (Qwen3-VL).
        q_weight, k_weight: (D,), dtype of q or float32: RMSNorm of each head of q, of k or of both before the
            rotation, over all D dims of the rows below T: x / sqrt(mean(x^2) + eps) * weight, in float32.
        eps: see q_weight; at least 0.
        weight_plus_one: True multiplies by 1 + weight (Gemma); only with a weight.

    Returns:
        (q_out as (T, QH * D), k_out, key_cache, value_cache), and zeros_out if it was given or asked for.

    Raises:
        ValueError: rank, shape, device, memory overlap or option that does not fit, named with what fits.
        TypeError: a dtype that does not fit, no tensor, or an option that is not True or False.
        IndexError: on the CPU, a slot or position out of range, before anything is written. On CUDA such a row is
            not cached and the fault is recorded: see ``kvrope.last_fault`` and ``kvrope.check``.
    """
    # All at once, for a call is short; one by one only where one does not fit.
    if not (type(is_neox) is type(flash_layout) is type(apply_scale) is type(output_zeros) is bool):
        require_bools(_NAME, is_neox=is_neox, flash_layout=flash_layout)
        require_bools(_NAME, apply_scale=apply_scale, output_zeros=output_zeros)
    if not (type(match_unfused) is type(mrope_interleaved) is type(weight_plus_one) is bool):
        require_bools(_NAME, match_unfused=match_unfused, mrope_interleaved=mrope_interleaved)
        require_bools(_NAME, weight_plus_one=weight_plus_one)
    if not apply_scale:
        k_scale = v_scale = None  # ignored, also what the schema would not take
    if mrope_section is not None:
        require_sequence(_NAME, "mrope_section", mrope_section)
    try:
        if q_out is None:
            q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if k_out is None:
            k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        if zeros_out is None and output_zeros:
            zeros_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        arguments = (
            q,
            k,
            v,
            key_cache,
            value_cache,
            slot_mapping,
            pos,
            cos_sin,
            k_scale,
            v_scale,
            is_neox,
            flash_layout,
            apply_scale,
            offs,
            q_out,
            k_out,
            zeros_out,
            swa_slot_mapping,
            rotary_dim,
            rotary_dim_offset,
            kv_cache_dtype,
            q_scale,
            match_unfused,
            mrope_section,
            mrope_interleaved,
            q_weight,
            k_weight,
            eps,
            weight_plus_one,
        )
        rows = None if is_dynamo_compiling() else _C.fused_qk_rope_reshape_and_cache(*arguments)
        if rows is None:
            call_operator(_operator, arguments, _OPTIONS)
            rows = q_out.view(q_out.shape[0], q_out.shape[1] * q_out.shape[2])
    except (AttributeError, RuntimeError, TypeError) as error:  # torch's answer to an argument of a type it cannot take
        require_tensors(_NAME, q=q, k=k, v=v, key_cache=key_cache, value_cache=value_cache)
        require_tensors(_NAME, slot_mapping=slot_mapping, pos=pos, cos_sin=cos_sin)
        require_tensors(_NAME, True, q_out=q_out, k_out=k_out, k_scale=k_scale, v_scale=v_scale, offs=offs)
        require_tensors(_NAME, True, zeros_out=zeros_out, swa_slot_mapping=swa_slot_mapping)
        require_tensors(_NAME, True, q_scale=q_scale, q_weight=q_weight, k_weight=k_weight)
        raise_as_type_error(error)
        raise
    if zeros_out is None:
        return rows, k_out, key_cache, value_cache
    return rows, k_out, key_cache, value_cache, zeros_out
