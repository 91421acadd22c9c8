"""kvrope: RoPE on Q and K and the write of K and V into a paged KV cache, in one launch."""

import torch as _torch  # noqa: F401  (its libraries must be loaded before ours)

from . import _C
from ._faults import Fault, check, last_fault
from ._halves import reshape_and_cache, rope
from ._ops import fused_qk_rope_reshape_and_cache
from ._tables import build_cos_sin

__version__: str = _C.__version__
has_cuda: bool = _C.has_cuda

__all__ = [
    "Fault",
    "build_cos_sin",
    "check",
    "cmake_prefix_path",
    "fused_qk_rope_reshape_and_cache",
    "has_cuda",
    "last_fault",
    "reshape_and_cache",
    "rope",
]


def __getattr__(name: str) -> str:
    if name == "cmake_prefix_path":  # for find_package(kvrope), as torch.utils.cmake_prefix_path is for torch
        from pathlib import Path

        return str(Path(__file__).parent / "lib" / "cmake")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
