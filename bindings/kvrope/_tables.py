"""The table builder: a rope_scaling dict becomes typed fields; the rest is C++ (cos_sin_table.h)."""

import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Optional, Union

import torch

from . import _C

_NUMBERS = (
    "rope_theta", "factor", "original_max_position_embeddings", "max_position_embeddings", "attention_factor",
    "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor",
    "partial_rotary_factor",
)  # fmt: skip
_LISTS = ("short_factor", "long_factor")


def build_cos_sin(
    rotary_dim: int,
    max_position: int,
    base: float = 10000.0,
    scaling: Optional[Mapping[str, Any]] = None,
    *,
    full_width: bool = False,
    is_neox: bool = True,
    dtype: torch.dtype = torch.float32,
    device: Union[torch.device, str, None] = None,
) -> torch.Tensor:
    """The cos_sin table of positions 0 .. max_position - 1: cosines of p * theta_i, then sines.

    theta_i = base^(-2i / rotary_dim), changed by ``scaling``; computed in fp32 on the CPU in the order of
    transformers 5.17's own functions, then moved: the same bits on every device.

    Args:
        rotary_dim: R, even: the rotated dims of a head (head size * partial_rotary_factor).
        max_position: P, rows of the table. dynamic and longrope take it as the length of the sequence.
        base: rope_theta. A changed base is static NTK scaling.
        scaling: rope_scaling or rope_parameters of a Hugging Face config: rope_type (or the older ``type``)
            default, linear, dynamic, yarn, llama3, longrope or proportional, with the keys that it needs;
            other keys are ignored, and None counts as absent. rope_theta in it replaces base. Attention
            factors (yarn, longrope) are multiplied into cosines and sines. The length that the model was
            trained with is original_max_position_embeddings; longrope without ``factor`` divides
            max_position_embeddings by it. partial_rotary_factor is the caller's (rotary_dim), except for
            proportional.
        full_width: one column for each element, (P, 2R), rather than for each pair, (P, R).
        is_neox: the order of a full width's columns: pair i in i and i + R/2; False is GPT-J: 2i and 2i + 1.
        dtype: float32, float16 or bfloat16.
        device: None is torch's default device.

    Returns:
        (P, R), or (P, 2R) with full_width.

    Raises:
        ValueError: a value that does not fit, an unknown rope_type or a missing key, named with what fits.
        TypeError: a value of another type.
    """
    return _C.build_cos_sin(
        _integer("rotary_dim", rotary_dim),
        _integer("max_position", max_position),
        _number("base", base),
        None if scaling is None else _typed(scaling),
        _require("full_width", full_width, isinstance(full_width, bool), "True or False"),
        _require("is_neox", is_neox, isinstance(is_neox, bool), "True or False"),
        _require("dtype", dtype, isinstance(dtype, torch.dtype), "a torch.dtype"),
        torch.get_default_device() if device is None else torch.device(device),
    )


def _typed(scaling: Mapping[str, Any]) -> _C.RopeScaling:
    _require("scaling", scaling, isinstance(scaling, Mapping), "a dict or None")
    layer_types = [str(key) for key, value in scaling.items() if isinstance(value, Mapping)]
    if layer_types:
        raise ValueError(
            "build_cos_sin: scaling: expected the parameters of one layer type, "
            f"got a dict of them: pass one of {', '.join(layer_types)}"
        )
    given = {key: value for key, value in scaling.items() if value is not None}
    typed = _C.RopeScaling()
    rope_type = given.get("rope_type", given.get("type", "default"))
    typed.rope_type = _require("scaling: rope_type", rope_type, isinstance(rope_type, str), "a str")
    for key in _NUMBERS:
        if key in given:
            setattr(typed, key, _number(f"scaling: {key}", given[key]))
    for key in _LISTS:
        if key in given:
            setattr(typed, key, _numbers(f"scaling: {key}", given[key]))
    if "truncate" in given:
        value = given["truncate"]
        typed.truncate = _require("scaling: truncate", value, isinstance(value, bool), "True or False")
    return typed


def _require(name: str, value: Any, fits: bool, expected: str) -> Any:
    if not fits:
        raise TypeError(f"build_cos_sin: {name}: expected {expected}, got {value!r}")
    return value


def _integer(name: str, value: Any) -> int:
    _require(name, value, hasattr(value, "__index__") and not isinstance(value, bool), "an int")
    return operator.index(value)


def _number(name: str, value: Any) -> float:
    return float(_require(name, value, isinstance(value, Real) and not isinstance(value, bool), "a number"))


def _numbers(name: str, value: Any) -> "list[float]":
    _require(name, value, isinstance(value, Sequence) and not isinstance(value, str), "a list of numbers")
    return [_number(f"{name}[{i}]", number) for i, number in enumerate(value)]
