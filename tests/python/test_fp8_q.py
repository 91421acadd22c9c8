"""fp8 queries: q_out as codes of the rotation times 1 / q_scale, for attention that reads fp8."""

from typing import Any

import kvrope
import numpy as np
import pytest
import torch

from cases import Case, build, verify
from elements import bits_of
from fp8_codes import fp8_format
from halves import rope_call, rope_of, run_halves
from tensors import LAYOUTS, ROW_STRIDES

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
E4M3 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
both_formats = pytest.mark.parametrize("fp8", FP8, ids=str)

CALLS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "one row": dict(num_tokens=1),
    "no rows": dict(num_tokens=0, num_kv_rows=3),
    "kv only rows": dict(num_kv_rows=9, num_slots=8),
    "gptj": dict(is_neox=False, full_width=True),
    "partial": dict(rotary_dim=32, rotary_dim_offset=7, is_neox=False),
    "partial and aligned": dict(rotary_dim=32, rotary_dim_offset=8, num_tokens=140),
    "k in place": dict(k_out="in_place", strides="fused_qkv"),
    "extremes": dict(extremes=True, num_tokens=40, rotary_dim=32),
    "norm": dict(norm="q", weight_plus_one=True),
    "norms of many": dict(norm="qk", num_tokens=300, q_heads=2, rotary_dim=32),
    "mrope": dict(mrope_section=(7, 12, 13), mrope_interleaved=True),
    "fp8 caches": dict(cache_dtype=E4M3, k_scale=[0.3, 3.0], v_scale=0.7),
    "another format": dict(cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2", k_scale=0.3),
    "scales ignored": dict(k_scale=0.3, v_scale=9.0, apply_scale=False),
    "padding": dict(slots=[3, -1, 20, -5, 127], pos=[1, 999, 2, 0, 5], zeros_out="contiguous"),
    "window and offsets": dict(swa=list(range(127, -1, -1)), offs=[3, -1, 0, 2, -9], pos=[9, 1, 30, 2, 9]),
    "odd values": dict(v_head_size=47, num_tokens=300, layout="x_split"),
    "many rows": dict(num_tokens=200, q_heads=4, kv_heads=2),
    "more rows": dict(num_tokens=2500, q_heads=2, kv_heads=1),
}  # fmt: skip
FORGIVEN = ("padding",)  # positions that are out of range in rope


def queries(device: str, fp8: torch.dtype = E4M3, q_scale: Any = 0.3, **options: Any) -> Case:
    return Case(device, **{"q_out_dtype": fp8, "q_scale": q_scale, **options})


def per_head(options: dict[str, Any]) -> list[float]:
    return [0.3, 7.0][: options.get("kv_heads", 2)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (bits_of(a).reshape(-1) == bits_of(b).reshape(-1)).all()


@both_formats
@pytest.mark.parametrize("what", CALLS)
def test_calls(device: str, what: str, fp8: torch.dtype) -> None:
    verify(queries(device, fp8, per_head(CALLS[what]), **CALLS[what]))
    verify(queries(device, fp8, None, **{**CALLS[what], "zeros_out": "odd_offset", "dtype": torch.float16}))


@both_formats
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(device: str, dtype: torch.dtype, layout: str, fp8: torch.dtype) -> None:
    verify(queries(device, fp8, layout=layout, dtype=dtype, num_tokens=20))
    verify(queries(device, fp8, layout=layout, dtype=dtype, cache_dtype=E4M3, k_scale=0.5, is_neox=False))


@pytest.mark.parametrize("head_size", [2, 4, 6, 40, 46, 80, 96, 126, 128, 192, 256, 510, 512])
def test_head_sizes(device: str, head_size: int) -> None:
    """Codes are written in vectors of other widths than the values they come from."""
    for dtype, num_tokens in ((torch.bfloat16, 3), (torch.bfloat16, 140), (torch.float32, 3)):
        sizes = dict(head_size=head_size, num_tokens=num_tokens, q_heads=2, kv_heads=1)
        verify(queries(device, dtype=dtype, **sizes))
    verify(queries(device, head_size=head_size, is_neox=False, rotary_dim=2, rotary_dim_offset=head_size - 2))


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 64, 127, 128, 129, 200, 256, 257, 300, 2048, 2049])
def test_token_counts(device: str, num_tokens: int) -> None:
    sizes = dict(num_tokens=num_tokens, q_heads=2, kv_heads=1)
    verify(queries(device, **sizes))
    if num_tokens <= 300:
        verify(queries(device, layout="shuffled", cache_dtype=E4M3, rotary_dim=32, norm="qk", **sizes))


@pytest.mark.parametrize("q_out", ["contiguous", "odd_offset", "eight_bytes", "dim_stride_2"])
@pytest.mark.parametrize("strides", ["contiguous", "odd_padded", "fused_qkv"])
def test_strides(device: str, strides: str, q_out: str) -> None:
    part = dict(rotary_dim=6, rotary_dim_offset=2)
    for options in (dict(), dict(is_neox=False), part, dict(num_tokens=140)):
        verify(queries(device, strides=strides, q_out=q_out, **options))


@pytest.mark.parametrize("offset", range(1, 17))
def test_codes_at_any_byte(device: str, offset: int) -> None:
    for num_tokens, is_neox in ((5, True), (5, False), (150, True)):
        call = build(queries(device, num_tokens=num_tokens, is_neox=is_neox, q_heads=2))
        size = num_tokens * 2 * 64
        whole = torch.zeros(64 + size + 64, dtype=torch.uint8, device=device).view(E4M3)
        call.arguments["q_out"] = whole[64 + offset :][:size].view(num_tokens, 2, 64)
        verify(call)


@pytest.mark.parametrize("q_out", ROW_STRIDES)
@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
def test_rope_into_any_strides(device: str, has_k: bool, q_out: str) -> None:
    """rope has q_out in q's shape, which needs no view."""
    verify(rope_call(queries(device, q_scale=[0.3], q_out=q_out), has_k))
    verify(rope_call(queries(device, q_scale=None, q_out=q_out, num_tokens=140), has_k))


@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
@pytest.mark.parametrize("what", [what for what in CALLS if what not in FORGIVEN])
def test_rope(device: str, what: str, has_k: bool) -> None:
    verify(rope_call(queries(device, FP8[has_k], per_head(CALLS[what]), **CALLS[what]), has_k))


# --- Scales


@pytest.mark.parametrize("scale", [None, 1.0, [0.25], [0.25, 3.0]], ids=str)
def test_scale_forms(device: str, scale: Any) -> None:
    for dtype in DTYPES:
        verify(queries(device, q_scale=scale, dtype=dtype))
        verify(queries(device, q_scale=scale, dtype=dtype, apply_scale=False, k_scale=9.0, is_neox=False))


@pytest.mark.parametrize("q_heads, kv_heads", [(8, 2), (8, 8), (6, 3), (7, 1), (64, 8)])
def test_a_query_head_takes_the_scale_of_its_key_head(device: str, q_heads: int, kv_heads: int) -> None:
    """At angle 0, by hand: powers of two in the codes of a head of ones."""
    table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
    for num_tokens in (1, 150):
        q = torch.ones(num_tokens, q_heads, 64)
        heads = dict(q_heads=q_heads, kv_heads=kv_heads, num_tokens=num_tokens, q=q)
        scale = [2.0**head for head in range(kv_heads)]
        case = queries(device, q_scale=scale, table=table, table_rows=1, pos=[0] * num_tokens, **heads)
        q_out = verify(case).run()[0].view(num_tokens, q_heads, 64).float().cpu()
        for head in range(q_heads):
            assert (q_out[:, head] == 2.0 ** -(head // (q_heads // kv_heads))).all()


def test_scalar_and_one_element_scales_give_the_same_bits(device: str) -> None:
    codes = [bits_of(build(queries(device, q_scale=scale)).run()[0]) for scale in (0.3, [0.3], [0.3, 0.3])]
    assert (codes[0] == codes[1]).all() and (codes[0] == codes[2]).all()


def test_strided_scale_per_head(device: str) -> None:
    both = torch.tensor([[0.25, 4.0], [3.0, 0.1]], device=device)
    call = build(queries(device))
    for scale in (both[:, 0], both[:1, 0].expand(2), both[0, 1]):
        call.arguments["q_scale"] = scale
        verify(call)


@both_formats
@pytest.mark.parametrize("scale", [0.0, -0.0, -2.0, float("nan"), 1e-45, 1e-40, 3.0e38, float("inf")])
def test_odd_scales_give_the_ieee_result(device: str, scale: float, fp8: torch.dtype) -> None:
    verify(queries(device, fp8, scale, rotary_dim=2))
    verify(queries(device, fp8, scale, is_neox=False))


def test_only_q_is_scaled(device: str) -> None:
    """k_out and both caches have the bits of the call with a q_out of q's dtype."""
    fp8 = build(queries(device, q_scale=[0.3, 7.0], k_scale=0.5, cache_dtype=E4M3)).run()
    own = build(Case(device, k_scale=0.5, cache_dtype=E4M3)).run()
    assert all(same_bits(got, want) for got, want in zip(fp8[1:], own[1:], strict=True))


def test_scale_is_read_at_run_time(device: str) -> None:
    call = build(queries(device, q_scale=[0.3, 7.0]))
    verify(call)
    call.arguments["q_scale"].copy_(torch.tensor([2.0, 0.1]))
    verify(call)


# --- Codes


def codes_of(values: np.ndarray, scale: float | None, fp8: torch.dtype) -> np.ndarray:
    """By table, of fp32 values times 1 / scale in fp32."""
    with np.errstate(all="ignore"):
        reciprocal = np.float32(1.0) / np.float32(1.0 if scale is None else scale)
        return fp8_format(fp8).encode((values.astype(np.float32) * reciprocal).astype(np.float64))


@both_formats
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [None, 3.0, 1 / 7])
def test_every_16_bit_value(device: str, scale: float | None, dtype: torch.dtype, fp8: torch.dtype) -> None:
    """As dims that are not rotated, and as dims that are rotated by nothing: beside zeros, by angle 0."""
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).reshape(256, 1, 256)
    q = torch.cat((values, torch.zeros_like(values)), dim=2)
    table = torch.tensor([[1.0] * 256 + [0.0] * 256, [1.0, 0.0] * 256])
    expected = codes_of(values.float().numpy(), scale, fp8)
    case = dict(num_tokens=256, q_heads=1, kv_heads=1, head_size=512, q=q, dtype=dtype, num_blocks=17)
    passing = dict(rotary_dim=2, rotary_dim_offset=510, table=table[1:, :2], table_rows=1)
    for rotation in (passing, dict(table=table[:1], table_rows=1)):
        q_out = build(queries(device, fp8, scale, pos=[0] * 256, **case, **rotation)).run()[0]
        assert (bits_of(q_out)[:, :256] == expected[:, 0]).all()


@both_formats
def test_dense_fp32_values(device: str, fp8: torch.dtype) -> None:
    """Every code's value, every tie between two codes, and the fp32 numbers next to them."""
    format_ = fp8_format(fp8)
    steps = format_.values[: format_.largest_code + 1]
    points = np.concatenate((steps, (steps[1:] + steps[:-1]) / 2)).astype(np.float32)
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-1e9))]
    )
    points = np.concatenate([points, -points, np.float32([np.inf, -np.inf, np.nan, -np.nan, 3.4e38, 1e-45])])
    points = np.resize(points, (-(-points.size // 62), 1, 62))
    q = torch.from_numpy(np.concatenate((np.zeros((len(points), 1, 2), np.float32), points), axis=2))
    case = dict(num_tokens=len(points), q_heads=1, kv_heads=1, q=q, dtype=torch.float32, rotary_dim=2)
    q_out = verify(queries(device, fp8, None, **case)).run()[0]
    assert (bits_of(q_out)[:, 2:] == codes_of(points[:, 0], None, fp8)).all()


FP32_CALLS = ["plain", "gptj", "partial", "norm", "norms of many", "mrope", "many rows", "kv only rows"]


@both_formats
@pytest.mark.parametrize("what", FP32_CALLS)
def test_codes_are_those_of_the_fp32_result(device: str, what: str, fp8: torch.dtype) -> None:
    """To the bit: q_out of the same call in fp32, scaled there, cast by table."""
    for scale in (None, 0.037):
        case = queries(device, fp8, scale, dtype=torch.float32, **CALLS[what])
        call = build(case)
        in_fp32 = call.copy(q_out=None)
        in_fp32.arguments.pop("q_scale", None)
        for got, exact in ((call, in_fp32), (rope_of(call.copy()), rope_of(in_fp32.copy()))):
            expected = codes_of(exact.run()[0].cpu().numpy(), scale, fp8)
            assert (bits_of(got.run()[0]) == expected).all()


@both_formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("what", ["plain", "gptj", "partial", "mrope", "many rows"])
def test_16_bit_queries_are_not_rounded_before_the_scale(
    device: str, what: str, dtype: torch.dtype, fp8: torch.dtype
) -> None:
    """The same, from the fp32 rotation of the same values."""
    call = build(queries(device, fp8, 0.3, dtype=dtype, **CALLS[what]))
    in_fp32 = rope_of(call, has_k=False)
    in_fp32.arguments.update(q=call.arguments["q"].float(), q_out=None, q_scale=None)
    exact = in_fp32.run()[0].cpu()
    expected = codes_of(exact.numpy(), 0.3, fp8).reshape(exact.shape[0], -1)
    assert (bits_of(call.run()[0]) == expected).all()
    rounded = codes_of(exact.to(dtype).float().numpy(), 0.3, fp8).reshape(expected.shape)
    assert dtype == torch.float16 or (rounded != expected).any()  # the comparison can fail


def test_query_is_not_rounded_twice(device: str) -> None:
    """1 + 1/16 + 2^-12 lies above a tie of e4m3fn; bf16 would round it onto the tie, and that goes down."""
    value = 1 + 1 / 16 + 2**-12
    table = torch.cat((torch.full((1, 32), value), torch.zeros(1, 32)), dim=1)
    case = dict(num_tokens=1, q=torch.ones(1, 8, 64), pos=[0], table=table, table_rows=1, slots=[0])
    for options in (dict(), dict(match_unfused=True)):  # which rounds keys first, and no queries
        q_out = verify(queries(device, q_scale=None, options=options, **case)).run()[0]
        assert (bits_of(q_out) == 0x39).all()


def test_saturation_and_nan(device: str) -> None:
    q = torch.tensor([449.0, 1000.0, -1e5, torch.inf, -torch.inf, torch.nan, -0.0, 1.0]).repeat(1, 2, 8)
    case = dict(num_tokens=1, q_heads=2, q=q, rotary_dim=2, rotary_dim_offset=62)
    codes = bits_of(verify(queries(device, q_scale=None, **case)).run()[0])[0, :8]
    assert codes.tolist() == [0x7E, 0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0x80, 0x38]
    codes = bits_of(verify(queries(device, torch.float8_e5m2, None, **case)).run()[0])[0, :8]
    assert codes.tolist() == [0x5F, 0x64, 0xFB, 0x7B, 0xFB, 0x7F, 0x80, 0x3C]


# --- With reshape_and_cache, on both devices, and where rows are no good


@both_formats
@pytest.mark.parametrize("what", [what for what in CALLS if what not in FORGIVEN])
def test_match_unfused(device: str, what: str, fp8: torch.dtype) -> None:
    """rope with the same q_scale, then reshape_and_cache, give the bits of the fused call."""
    for dtype in DTYPES:
        options = {"dtype": dtype, "k_scale": 0.3, **CALLS[what]}
        fused = build(queries(device, fp8, per_head(options), **options))
        halves, as_ever = fused.copy(), fused.copy()
        expected = fused.run(lambda **a: kvrope.fused_qk_rope_reshape_and_cache(**a, match_unfused=True))
        for got, want in zip(run_halves(halves), expected, strict=False):
            assert same_bits(got, want), dtype
        assert same_bits(as_ever.run()[0], expected[0])


@both_formats
@pytest.mark.parametrize("what", CALLS)
def test_same_bits_as_the_cpu(cuda: str, what: str, fp8: torch.dtype) -> None:
    for dtype in DTYPES:
        fused = build(queries(cuda, fp8, per_head(CALLS[what]), dtype=dtype, **CALLS[what]))
        for call in [fused] if what in FORGIVEN else [rope_of(fused.copy()), fused]:
            on_cpu = call.copy(device="cpu")
            for got, want in zip(call.run(), on_cpu.run(), strict=True):
                assert same_bits(got, want), dtype


@both_formats
@pytest.mark.parametrize("num_tokens", [5, 300])
@pytest.mark.parametrize("norm", ["", "qk"])
def test_rows_out_of_range(device: str, norm: str, num_tokens: int, fp8: torch.dtype) -> None:
    """NaN's code in q's rows at fault, zero's in padding rows, whatever the scale."""
    pos = [row % 200 for row in range(num_tokens)]
    pos[2], pos[3] = 256, -1
    slots = [row for row in range(num_tokens)]
    slots[3] = -1
    options = dict(num_tokens=num_tokens, q_scale=-0.5, q_out="dim_stride_2", norm=norm, pos=pos, q_heads=2)
    verify(queries(device, fp8, slots=slots, **options))
    slots[2] = -7
    q_out = verify(queries(device, fp8, slots=slots, **options)).run()[0]
    assert (bits_of(q_out)[2:4] == 0x00).all()
    pos[3] = 3
    verify(rope_call(queries(device, fp8, **options)))


@both_formats
def test_codes_of_a_fault(cuda: str, fp8: torch.dtype) -> None:
    for options in (dict(), dict(mrope_section=(7, 12, 13), pos=[[0] * 5, [0, 0, 256, 0, 0], [0] * 5])):
        call = build(queries(cuda, fp8, -0.5, **{"pos": [0, 1, 256, 2, 3], **options}))
        for call_ in (call, rope_of(call.copy())):
            codes = bits_of(call_.run()[0])
            assert (codes[2] == 0x7F).all() and not (codes[[0, 1, 3, 4]] & 0x7F == 0x7F).any()
            with pytest.raises(IndexError):
                kvrope.check(cuda)
