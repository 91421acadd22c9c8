"""The 256 codes of each fp8 format, decoded by hand. Rounding to a format is a search in its table."""

from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass(frozen=True)
class Fp8Format:
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool  # e5m2; e4m3fn uses all but one code of the top exponent for numbers
    values: np.ndarray = field(init=False, repr=False)  # float64 (256,), by code
    largest_code: int = field(init=False)  # of the largest finite value

    def __post_init__(self) -> None:
        values = np.array([self._decode(code) for code in range(256)])
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "largest_code", int(np.flatnonzero(np.isfinite(values[:128]))[-1]))

    def _decode(self, code: int) -> float:
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        top_exponent, top_mantissa = (1 << self.exponent_bits) - 1, (1 << self.mantissa_bits) - 1
        bias = (1 << (self.exponent_bits - 1)) - 1
        if exponent == top_exponent and self.has_infinity:
            return sign * np.inf if mantissa == 0 else np.nan
        if exponent == top_exponent and mantissa == top_mantissa:
            return np.nan
        fraction = mantissa / (1 << self.mantissa_bits)
        if exponent == 0:
            return sign * fraction * 2.0 ** (1 - bias)
        return sign * (1 + fraction) * 2.0 ** (exponent - bias)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Codes of float64 values: nearest, ties to even; overflow and infinity saturate; NaN is 0x7f."""
        values = np.asarray(values, dtype=np.float64)
        steps = self.values[: self.largest_code + 1]
        magnitude = np.minimum(
            np.abs(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)), steps[-1]
        )
        below = np.searchsorted(steps, magnitude, side="right") - 1
        above = np.minimum(below + 1, self.largest_code)
        to_below, to_above = magnitude - steps[below], steps[above] - magnitude
        takes_above = (to_above < to_below) | ((to_above == to_below) & (below % 2 == 1))
        codes = np.where(takes_above, above, below) + np.where(np.signbit(values), 0x80, 0)
        return np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)

    def is_nan(self, codes: np.ndarray) -> np.ndarray:
        return np.isnan(self.values[codes])


def step_index(codes: np.ndarray) -> np.ndarray:
    """Codes in the order of their values: neighbours differ by one, the two zeros by none."""
    codes = np.asarray(codes, dtype=np.int64)
    return np.where(codes & 0x80, -(codes & 0x7F), codes)


E4M3 = Fp8Format(exponent_bits=4, mantissa_bits=3, has_infinity=False)
E5M2 = Fp8Format(exponent_bits=5, mantissa_bits=2, has_infinity=True)


def fp8_format(dtype: torch.dtype, kv_cache_dtype: str = "auto") -> Fp8Format | None:
    """The format of a cache, or None when it is not fp8."""
    if dtype == torch.uint8:
        return {"fp8": E4M3, "fp8_e4m3": E4M3, "fp8_e5m2": E5M2}[kv_cache_dtype]
    return {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}.get(dtype)
