"""Raw bits of elements: where each lies in its storage, what it means, how far it is from right."""

from typing import Any

import numpy as np
import torch

from fp8_codes import fp8_format, step_index
from oracle import Rows

ROTATION_ERROR = 2e-6  # times |a cos| + |b sin|: the fp32 arithmetic's share of the tolerance
UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def storage_bytes(tensor: torch.Tensor) -> np.ndarray:
    """A copy of the whole storage behind a tensor, guard bands and neighbours included."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return whole.cpu().numpy().copy()


def element_offsets(tensor: torch.Tensor, index: tuple[np.ndarray, ...] | None = None) -> np.ndarray:
    """Element offsets into the storage: of the whole tensor, or of elements at broadcastable index arrays."""
    if index is None:
        index = np.ix_(*(np.arange(size) for size in tensor.shape))
    offsets = np.int64(tensor.storage_offset())
    for i, stride in zip(index, tensor.stride(), strict=True):
        offsets = offsets + np.asarray(i, dtype=np.int64) * stride
    return np.asarray(offsets)


def cache_offsets(cache: torch.Tensor, is_key: bool, flash_layout: bool, slots: list[int]) -> np.ndarray:
    """Element offsets of (slot, head, dim) for a list of slots, by the contract's shapes of the layouts."""
    slot = np.array(slots, dtype=np.int64)[:, None, None]
    if flash_layout:  # (NB, BS, KH, D)
        _, block_size, num_heads, head_size = cache.shape
    elif is_key:  # (NB, KH, D/x, BS, x)
        _, num_heads, groups, block_size, x = cache.shape
        head_size = groups * x
    elif cache.dim() == 4:  # (NB, KH, Dv, BS)
        _, num_heads, head_size, block_size = cache.shape
    else:  # (NB, KH, BS/x, Dv, x)
        _, num_heads, chunks, head_size, x = cache.shape
        block_size = chunks * x
    head = np.arange(num_heads)[None, :, None]
    dim = np.arange(head_size)[None, None, :]
    block, offset = slot // block_size, slot % block_size
    if flash_layout:
        return element_offsets(cache, (block, offset, head, dim))
    if is_key:
        return element_offsets(cache, (block, head, dim // x, offset, dim % x))
    if cache.dim() == 4:
        return element_offsets(cache, (block, head, dim, offset))
    return element_offsets(cache, (block, head, offset // x, dim, offset % x))


def bits_at(storage: np.ndarray, itemsize: int, offsets: np.ndarray) -> np.ndarray:
    usable = storage.size - storage.size % itemsize
    return storage[:usable].view(UINT_OF_SIZE[itemsize])[offsets]


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return bits_at(storage_bytes(tensor), tensor.element_size(), element_offsets(tensor))


def decode(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaN
        if dtype == torch.float32:
            return bits.view(np.float32).astype(np.float64)
        if dtype == torch.float16:
            return bits.view(np.float16).astype(np.float64)
        assert dtype == torch.bfloat16, dtype
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def encode(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bits of fp32 values, given as float64, rounded to a 16-bit or 32-bit dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = torch.from_numpy(values.astype(np.float32).reshape(-1)).to(dtype)
    if values.size == 0:
        return np.zeros(values.shape, dtype=UINT_OF_SIZE[dtype.itemsize])
    return rounded.view(torch.uint8).numpy().view(UINT_OF_SIZE[dtype.itemsize]).reshape(values.shape)


def ulp(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance of neighbours at a value; 0 for fp32, which is held to the rotation error alone."""
    if dtype == torch.float32:
        return np.zeros_like(values)
    mantissa_bits, smallest_exponent = {torch.float16: (10, -14), torch.bfloat16: (7, -126)}[dtype]
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 1.0))
    return np.ldexp(1.0, np.maximum(exponent - 1, smallest_exponent) - mantissa_bits)


def fail_at(name: str, wrong: np.ndarray, got: np.ndarray, expected: np.ndarray, bits: np.ndarray) -> None:
    if not wrong.any():
        return
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    raise AssertionError(
        f"{name}: {int(wrong.sum())} of {wrong.size} elements differ, first at {list(first)}: "
        f"expected {expected[first]!r}, got {got[first]!r} (bits {int(bits[first]):#x})"
    )


def compare_rows(
    name: str, bits: np.ndarray, dtype: torch.dtype, expected: Rows, kv_cache_dtype: str = "auto"
) -> None:
    """Element by element: exact ones to the bit, rotated ones within the tolerance, NaN for NaN."""
    assert bits.shape == expected.value.shape, (
        f"{name}: expected shape {expected.value.shape}, got {bits.shape}"
    )
    if (fp8 := fp8_format(dtype, kv_cache_dtype)) is not None:
        return compare_codes(name, bits, fp8, expected)
    got = decode(bits, dtype)
    nearest = encode(expected.value, dtype)
    with np.errstate(invalid="ignore"):
        tolerance = ulp(expected.value, dtype) + ROTATION_ERROR * expected.magnitude
        is_close = np.abs(got - expected.value) <= tolerance
    is_right = (bits == nearest) | (expected.is_computed & is_close)
    is_right = np.where(np.isnan(expected.value), np.isnan(got), is_right)
    fail_at(name, ~is_right, got, expected.value, bits)


def compare_codes(name: str, codes: np.ndarray, fp8: Any, expected: Rows) -> None:
    """The exact code; where the fp32 rotation's error straddles a tie, the code on its other side as well."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = ROTATION_ERROR * expected.magnitude
        lowest = step_index(fp8.encode(expected.value - error))
        highest = step_index(fp8.encode(expected.value + error))
    nearest = fp8.encode(expected.value)
    index = step_index(codes)
    is_close = (index >= lowest) & (index <= highest) & (np.abs(index - step_index(nearest)) <= 1)
    is_close &= ~fp8.is_nan(codes)
    is_right = (codes == nearest) | (expected.is_computed & is_close)
    is_right = np.where(np.isnan(expected.value), fp8.is_nan(codes), is_right)
    fail_at(name, ~is_right, fp8.values[codes], expected.value, codes)


class Memory:
    """The bytes of every storage that a call can reach, to prove afterwards what it left alone."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.owners: dict[int, list[str]] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        for name, tensor in tensors.items():
            pointer = tensor.untyped_storage().data_ptr()
            self.owners.setdefault(pointer, []).append(name)
            self.tensors.setdefault(pointer, tensor)
        self.before = {pointer: storage_bytes(tensor) for pointer, tensor in self.tensors.items()}
        self.may_change = {
            pointer: np.zeros(bytes_.shape, dtype=bool) for pointer, bytes_ in self.before.items()
        }

    def allow(self, tensor: torch.Tensor, offsets: np.ndarray) -> None:
        itemsize = tensor.element_size()
        first_bytes = offsets.reshape(-1) * itemsize
        mask = self.may_change.get(tensor.untyped_storage().data_ptr())
        if mask is not None:  # an output that the call allocated has no earlier bytes
            for byte in range(itemsize):
                mask[first_bytes + byte] = True

    def compare(self) -> None:
        for pointer, tensor in self.tensors.items():
            after = storage_bytes(tensor)
            stray = np.flatnonzero((after != self.before[pointer]) & ~self.may_change[pointer])
            if stray.size:
                at = int(stray[0])
                raise AssertionError(
                    f"{stray.size} bytes changed that should not, "
                    f"in the storage of {', '.join(self.owners[pointer])}: first at byte {at}, "
                    f"expected {self.before[pointer][at]:#x}, got {after[at]:#x}"
                )
