"""What Python needs besides the torch operators, which loading this module registers."""

from typing import List, Optional, Tuple

import torch

__version__: str
has_cuda: bool

def last_fault(device: torch.device) -> Optional[Tuple[str, str, int, int]]: ...
def check(device: torch.device) -> None: ...

# torch.ops.kvrope's operators with all their arguments by position. None, and nothing done, where torch must see the
# arguments (__torch_function__) or one of them is of another type.
def fused_qk_rope_reshape_and_cache(*arguments: object) -> Optional[torch.Tensor]: ...  # q_out as (T, QH * D)
def rope(*arguments: object) -> Optional[bool]: ...  # True
def reshape_and_cache(*arguments: object) -> Optional[bool]: ...  # True

class RopeScaling:
    """kvrope::RopeScaling: the keys of a rope_scaling dict, typed."""

    rope_type: str
    rope_theta: Optional[float]
    factor: Optional[float]
    original_max_position_embeddings: Optional[float]
    max_position_embeddings: Optional[float]
    attention_factor: Optional[float]
    mscale: Optional[float]
    mscale_all_dim: Optional[float]
    beta_fast: Optional[float]
    beta_slow: Optional[float]
    truncate: Optional[bool]
    low_freq_factor: Optional[float]
    high_freq_factor: Optional[float]
    short_factor: Optional[List[float]]
    long_factor: Optional[List[float]]
    partial_rotary_factor: Optional[float]

def build_cos_sin(
    rotary_dim: int,
    max_position: int,
    base: float,
    scaling: Optional[RopeScaling],
    full_width: bool,
    is_neox: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor: ...
