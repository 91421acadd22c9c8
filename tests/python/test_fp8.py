"""Quantisation: every fp8 code by table, saturation, NaN, scales in all forms that fit."""

import numpy as np
import pytest
import torch

from cases import Case, build, verify
from elements import bits_at, bits_of, cache_offsets, storage_bytes
from fp8_codes import fp8_format, step_index

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
LAYOUTS = ["flash", "x_split", "shuffled"]

# (v, code at scale 1), e4m3fn
BY_HAND = [
    (447.0, 0x7E), (448.0, 0x7E), (449.0, 0x7E), (464.0, 0x7E), (465.0, 0x7E), (1000.0, 0x7E), (-500.0, 0xFE),
    (0.0, 0x00), (-0.0, 0x80), (2**-9, 0x01), (2**-10, 0x00), (2**-11, 0x00), (3 * 2**-10, 0x02),
    (34.0, 0x60), (3.0e38, 0x7E), (np.inf, 0x7E), (-np.inf, 0xFE),
]  # fmt: skip


def cached_codes(call, name: str) -> np.ndarray:
    """(cached rows, heads, dims) of a cache, in the order of slot_mapping."""
    cache = call.arguments[name]
    slots = [slot for slot in call.arguments["slot_mapping"].tolist() if slot >= 0]
    offsets = cache_offsets(cache, name == "key_cache", call.arguments["flash_layout"], slots)
    return bits_at(storage_bytes(cache), cache.element_size(), offsets)


def values_row(values: list[float], num_tokens: int = 1, heads: int = 2) -> torch.Tensor:
    row = torch.tensor([*values, *[0.0] * (64 - len(values))], dtype=torch.float32)
    return row.expand(num_tokens, heads, 64).contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_by_hand(device: str, layout: str) -> None:
    values, codes = zip(*BY_HAND, strict=True)
    case = dict(
        num_tokens=1, slots=[3], dtype=torch.float32, cache_dtype=torch.float8_e4m3fn, layout=layout
    )  # fmt: skip
    call = verify(Case(device, v=values_row([*values, np.nan]), **case))
    got = cached_codes(call, "value_cache")[0, 0]
    assert tuple(got[: len(codes)]) == codes
    assert got[len(codes)] & 0x7F == 0x7F  # NaN
    call = verify(Case(device, v=values_row([240.0, 100.0]), v_scale=0.5, **case))
    got = cached_codes(call, "value_cache")[0, 0]
    assert tuple(got[:2]) == (0x7E, 0x74)  # 480 saturates; 200 is a tie and goes to 192


@pytest.mark.parametrize("cache_dtype", [*FP8, torch.float32], ids=str)
@pytest.mark.parametrize("v_scale", [None, 1.0, 0.5, 2.0])
@pytest.mark.parametrize("apply_scale", [True, False])
def test_special_values(device: str, apply_scale: bool, v_scale, cache_dtype: torch.dtype) -> None:
    values = [value for value, _ in BY_HAND]
    values += [np.nan, -np.nan, 57344.0, 57345.0, 61440.0, 65536.0, -70000.0, 2**-16, 2**-17, 3 * 2**-18]
    values += [1e-45, -1e-45, 1.1754944e-38, 3.4028235e38]
    verify(
        Case(
            device,
            dtype=torch.float32,
            cache_dtype=cache_dtype,
            v=values_row(values, 5),
            v_scale=v_scale,
            k_scale=v_scale,
            apply_scale=apply_scale,
        )  # fmt: skip
    )


@pytest.mark.parametrize("cache_dtype", FP8, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [None, 1.0, 3.0, 0.1, 1 / 7])
def test_every_16_bit_value(
    device: str, scale: float | None, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    """All 65536 as V: the code of x * (1 / scale), never more than one code from the exact quotient."""
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).reshape(128, 1, 512)
    case = Case(
        device, num_tokens=128, q_heads=1, kv_heads=1, head_size=2, v_head_size=512, v=values, dtype=dtype,
        cache_dtype=cache_dtype, v_scale=scale, num_blocks=16,
    )  # fmt: skip
    codes = cached_codes(verify(case), "value_cache").reshape(-1)
    exact = values.double().numpy().reshape(-1) / (1.0 if scale is None else float(np.float32(scale)))
    fp8 = fp8_format(cache_dtype)
    is_number = ~np.isnan(exact)
    apart = np.abs(step_index(codes) - step_index(fp8.encode(exact)))[is_number]
    assert apart.max() <= (0 if scale in (None, 1.0) else 1)
    assert fp8.is_nan(codes[~is_number]).all() and not fp8.is_nan(codes[is_number]).any()


@pytest.mark.parametrize("cache_dtype", FP8, ids=str)
def test_dense_fp32_values(device: str, cache_dtype: torch.dtype) -> None:
    """Every code's value, every tie between two codes, and the fp32 numbers next to them."""
    fp8 = fp8_format(cache_dtype)
    steps = fp8.values[: fp8.largest_code + 1]
    points = np.concatenate((steps, (steps[1:] + steps[:-1]) / 2)).astype(np.float32)
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-1e9))]
    )
    points = np.concatenate([points, -points])
    points = np.resize(points, (-(-points.size // 512) * 512)).reshape(-1, 1, 512)
    case = Case(
        device, num_tokens=points.shape[0], q_heads=1, kv_heads=1, head_size=2, v_head_size=512,
        v=torch.from_numpy(points), dtype=torch.float32, cache_dtype=cache_dtype,
    )  # fmt: skip
    verify(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cache_dtype", FP8, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rotated_keys(device: str, dtype: torch.dtype, cache_dtype: torch.dtype, layout: str) -> None:
    """K is quantised from the fp32 rotation; q_out and k_out keep full precision and take no scale."""
    verify(
        Case(
            device,
            num_tokens=40,
            dtype=dtype,
            cache_dtype=cache_dtype,
            layout=layout,
            k_scale=0.037,
            v_scale=0.02,
        )
    )


def test_key_is_not_rounded_twice(device: str) -> None:
    """1 + 1/16 + 2^-12 lies above a tie of e4m3fn; bf16 would round it onto the tie, and that goes down."""
    value = 1 + 1 / 16 + 2**-12
    table = torch.cat((torch.full((1, 32), value), torch.zeros(1, 32)), dim=1)
    case = Case(
        device, num_tokens=1, k=torch.ones(1, 2, 64), pos=[0], table=table, table_rows=1, slots=[0],
        cache_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    codes = cached_codes(verify(case), "key_cache")
    assert (codes == 0x39).all()


NAMES = [("fp8", FP8[0]), ("fp8_e4m3", FP8[0]), ("fp8_e5m2", FP8[1])]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name, cache_dtype", NAMES)
def test_uint8_cache_named_by_kv_cache_dtype(
    device: str, name: str, cache_dtype: torch.dtype, layout: str
) -> None:
    case = dict(layout=layout, k_scale=0.25, v_scale=4.0, num_tokens=9)
    as_bytes = verify(Case(device, cache_dtype=torch.uint8, kv_cache_dtype=name, **case))
    as_fp8 = verify(Case(device, cache_dtype=cache_dtype, **case))
    for cache in ("key_cache", "value_cache"):
        assert (bits_of(as_bytes.arguments[cache]) == bits_of(as_fp8.arguments[cache])).all()
    verify(
        Case(device, cache_dtype=cache_dtype, kv_cache_dtype=name, **case)
    )  # naming the cache's own format is fine


SCALES = {
    "scalar": (0.25, 4.0),
    "one element": ([0.25], [4.0]),
    "per head": ([0.25, 3.0], [4.0, 0.1]),
    "mixed forms": (0.25, [4.0, 0.1]),
    "k only": (0.25, None),
    "v only": (None, 4.0),
    "none": (None, None),
}


@pytest.mark.parametrize("cache_dtype", [*FP8, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("scales", SCALES, ids=lambda name: name.replace(" ", "_"))
def test_scale_forms(device: str, scales: str, cache_dtype: torch.dtype) -> None:
    """K and V use their own, a missing one is 1; a scale applies to 16-bit and fp32 caches too."""
    dtype = torch.float16 if cache_dtype in FP8 else cache_dtype
    k_scale, v_scale = SCALES[scales]
    for layout in LAYOUTS:
        verify(
            Case(
                device, dtype=dtype, cache_dtype=cache_dtype, layout=layout, k_scale=k_scale, v_scale=v_scale
            )
        )
    verify(
        Case(
            device, dtype=dtype, cache_dtype=cache_dtype, k_scale=k_scale, v_scale=v_scale, apply_scale=False
        )
    )


def test_scalar_and_one_element_scales_give_the_same_bits(device: str) -> None:
    calls = [
        verify(Case(device, cache_dtype=FP8[0], k_scale=k, v_scale=v))
        for k, v in ((0.3, 0.7), ([0.3], [0.7]))
    ]
    for cache in ("key_cache", "value_cache"):
        assert (bits_of(calls[0].arguments[cache]) == bits_of(calls[1].arguments[cache])).all()


def test_strided_scale_per_head(device: str) -> None:
    both = torch.tensor([[0.25, 4.0], [3.0, 0.1]], device=device)
    call = build(Case(device, cache_dtype=FP8[0]))
    call.arguments.update(k_scale=both[:, 0], v_scale=both[:, 1])
    verify(call)
    call.arguments.update(k_scale=both[:1, 0].expand(2), v_scale=both[0, 1])
    verify(call)


def test_one_head_takes_every_form(device: str) -> None:
    for form in (0.5, [0.5]):
        verify(Case(device, q_heads=4, kv_heads=1, cache_dtype=FP8[0], k_scale=form, v_scale=form))


@pytest.mark.parametrize("scale", [0.0, -0.0, -2.0, float("nan"), 1e-45, 1e-40, 3.0e38, float("inf")])
@pytest.mark.parametrize("cache_dtype", [*FP8, torch.bfloat16], ids=str)
def test_odd_scales_give_the_ieee_result(device: str, cache_dtype: torch.dtype, scale: float) -> None:
    """1 / scale as IEEE says, then saturated: no special case, no error."""
    verify(Case(device, cache_dtype=cache_dtype, v_scale=scale, k_scale=-2.0))
    verify(Case(device, cache_dtype=cache_dtype, k_scale=scale, rotary_dim=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_cache_overflows_as_ieee_says(device: str, dtype: torch.dtype) -> None:
    """A scale that lifts values past the dtype's largest makes infinities there, not saturated numbers."""
    v = values_row([65504.0, 65519.0, 65520.0, -70000.0, 3.0e38, 1.0], 5).to(dtype)
    verify(Case(device, dtype=dtype, v=v, v_scale=[0.9, 1e-30]))
