"""The oracle and the comparison themselves: right results pass, each kind of wrong result fails."""

import numpy as np
import pytest
import torch

import composition
from cases import Case, build, verify
from elements import bits_of, compare_rows
from fp8_codes import E4M3, E5M2
from oracle import Rows, exact_rows
from tensors import LAYOUTS, ROW_STRIDES

HONEST = composition.fused_qk_rope_reshape_and_cache


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("full_width", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_oracle_agrees_with_torch_composition(layout: str, full_width: bool, is_neox: bool) -> None:
    verify(Case(layout=layout, full_width=full_width, is_neox=is_neox, dtype=torch.float32), HONEST)


@pytest.mark.parametrize("strides", [*ROW_STRIDES, "fused_qkv"])
def test_oracle_agrees_for_every_kind_of_strides(strides: str) -> None:
    verify(Case(strides=strides, rotary_dim=32, rotary_dim_offset=7, index_stride=2), HONEST)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_oracle_agrees_for_fp8_and_scales(cache_dtype: torch.dtype) -> None:
    verify(Case(cache_dtype=cache_dtype, k_scale=0.25, v_scale=[4.0, 3.0], output_zeros=True), HONEST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_oracle_agrees_for_match_unfused(dtype: torch.dtype) -> None:
    case = dict(dtype=dtype, k_scale=0.3, v_scale=[4.0, 0.7], num_tokens=40)
    for cache_dtype in (dtype, torch.float8_e4m3fn):
        call = build(Case(cache_dtype=cache_dtype, options=dict(match_unfused=True), **case))
        verify(call.copy(), HONEST)
        if dtype == torch.float32 and cache_dtype != dtype:
            continue  # the last bit of fp32 is no matter to fp8
        with pytest.raises(AssertionError, match="cache"):
            verify(call.copy(), lambda **arguments: HONEST(**{**arguments, "match_unfused": False}))


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("norm", ["q", "k", "qk"])
def test_oracle_agrees_for_norms(norm: str, plus_one: bool) -> None:
    options = dict(weight_plus_one=plus_one, weight_dtype=torch.float32, eps=0.1)
    case = Case(norm=norm, rotary_dim=32, num_kv_rows=7, **options)
    verify(case, HONEST)
    for wrong in (dict(eps=0.2), dict(weight_plus_one=not plus_one), {f"{norm[0]}_weight": None}):
        with pytest.raises(AssertionError, match=f"{'[qk]' if norm == 'qk' else norm}_out"):
            verify(case, lambda wrong=wrong, **arguments: HONEST(**{**arguments, **wrong}))


MROPE = {
    "contiguous": dict(mrope_section=(5, 8, 3)),
    "interleaved": dict(mrope_section=(6, 4, 6), mrope_interleaved=True),
    "two axes": dict(mrope_section=(7, 0, 9)),
}


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("full_width", [True, False])
@pytest.mark.parametrize("what", MROPE)
def test_oracle_agrees_for_mrope(what: str, full_width: bool, is_neox: bool) -> None:
    style = dict(rotary_dim=32, rotary_dim_offset=7, is_neox=is_neox, full_width=full_width)
    case = Case(**MROPE[what], **style, num_kv_rows=7, offs=[1, 0, -3, 2, 0], table_rows=300, pos=[
        [1, 2, 3, 4, 5], [9, 8, 7, 6, 5], [250, 99, 50, 0, 5]])  # fmt: skip
    verify(case, HONEST)
    section, is_interleaved = MROPE[what]["mrope_section"], what == "interleaved"
    shifted = (section[0] + 1, section[1] - 1, section[2]) if section[1] else (section[0] - 1, 1, section[2])
    for wrong in (dict(mrope_section=shifted), dict(mrope_interleaved=not is_interleaved)):
        with pytest.raises(AssertionError, match="q_out"):
            verify(case, lambda wrong=wrong, **arguments: HONEST(**{**arguments, **wrong}))
    for order in ([1, 0, 2], [0, 2, 1], [2, 1, 0]):
        with pytest.raises(AssertionError, match="q_out"):
            verify(case, lambda order=order, **a: HONEST(**{**a, "pos": a["pos"][order]}))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_oracle_agrees_for_fp8_queries(dtype: torch.dtype) -> None:
    case = dict(q_out_dtype=dtype, rotary_dim=32, norm="q", q_out="odd_offset")
    verify(Case(**case), HONEST)
    verify(Case(q_scale=0.3, **case), HONEST)
    call = build(Case(q_scale=[0.3, 7.0], **case))
    verify(call.copy(), HONEST)
    for wrong in (None, call.arguments["q_scale"][:1], call.arguments["q_scale"].flip(0)):
        with pytest.raises(AssertionError, match="q_out"):
            verify(call.copy(), lambda wrong=wrong, **a: HONEST(**{**a, "q_scale": wrong}))


def test_oracle_agrees_for_padding_and_window() -> None:
    verify(Case(slots=[3, -1, 20, 4], swa=[-1, 7, 9, 40, -1] + [90] * 20, num_kv_rows=7), HONEST)


@pytest.mark.parametrize("value, scale", [(3e38, 3.0), (1e-38, 1e-40)])
def test_oracle_agrees_where_fp32_ends(value: float, scale: float) -> None:
    """A rotation is one of fp32: an infinity or a zero before the scale stays one after it."""
    table = torch.tensor([[1.0] * 8 + [-1.0] * 8, [1e-30] * 16], dtype=torch.float64)
    call = dict(dtype=torch.bfloat16, head_size=16, k_scale=scale, table=table, table_rows=2, pos=[0, 1])
    k = torch.full((2, 2, 16), value, dtype=torch.float64)
    verify(Case(num_tokens=2, kv_heads=2, k=k, slots=[0, 1], **call), HONEST)


@pytest.mark.parametrize("fp8, dtype", [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_fp8_table_is_torchs(fp8, dtype: torch.dtype) -> None:
    decoded = torch.arange(256, dtype=torch.uint8).view(dtype).double().numpy()
    assert np.array_equal(decoded, fp8.values, equal_nan=True)
    finite = np.isfinite(fp8.values)
    assert np.array_equal(fp8.encode(fp8.values)[finite], np.arange(256)[finite])


def test_fp8_rounding_by_hand() -> None:
    values = [
        447,
        448,
        449,
        464,
        465,
        1000,
        -500,
        0.0,
        -0.0,
        2**-9,
        2**-10,
        2**-11,
        34,
        np.nan,
        np.inf,
        3.0e38,
    ]
    codes = [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0, 0x80, 1, 0, 0, 0x60, 0x7F, 0x7E, 0x7E]
    assert E4M3.encode(np.array(values)).tolist() == codes
    assert E5M2.encode(np.array([57344.0, 57345.0, 61440.0, np.inf, -np.inf])).tolist() == [0x7B] * 4 + [0xFB]


def rows_of(values: list[float], magnitude: float = 0.0) -> Rows:
    value = np.array(values, dtype=np.float64).reshape(1, 1, -1)
    return Rows(value, np.full_like(value, magnitude), np.full(value.shape, magnitude > 0))


@pytest.mark.parametrize(
    "got, expected, passes",
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.2], [1.0, 2.0], False),
        ([1.0, np.nan], [1.0, 2.0], False),
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, 2.0], [1.0, np.nan], False),
        ([np.inf, 2.0], [448.0, 2.0], False),
        ([-0.0, 2.0], [0.0, 2.0], False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_comparison_of_exact_values(
    dtype: torch.dtype, got: list[float], expected: list[float], passes: bool
) -> None:
    bits = bits_of(torch.tensor(got).to(dtype).reshape(1, 1, -1))
    if passes:
        compare_rows("out", bits, dtype, rows_of(expected))
    else:
        with pytest.raises(
            AssertionError, match=r"out: 1 of 2 elements differ, first at \[0, 0, \d\]: expected"
        ):
            compare_rows("out", bits, dtype, rows_of(expected))


@pytest.mark.parametrize("ulps, passes", [(0, True), (1, True), (2, False), (-1, True), (-2, False)])
def test_comparison_of_rotated_values(ulps: int, passes: bool) -> None:
    bits = bits_of(torch.tensor([[[1.5]]], dtype=torch.float16))
    expected = rows_of([1.5 + ulps * 2.0**-10], magnitude=1e-3)
    if passes:
        compare_rows("out", bits, torch.float16, expected)
    else:
        with pytest.raises(AssertionError):
            compare_rows("out", bits, torch.float16, expected)


@pytest.mark.parametrize(
    "code, value, magnitude, passes",
    [
        (0x39, 1.125, 0.0, True),
        (0x38, 1.125, 0.0, False),  # one code apart, exact element
        (0x38, 1.0625, 1.0, True),  # 1.0625 is the tie of 0x38 and 0x39
        (0x39, 1.0625, 1.0, True),
        (0x3A, 1.0625, 1.0, False),
        (0x39, 1.05, 1.0, False),  # not near the tie
        (0x80, 0.0, 0.0, False),
        (0x7F, 448.0, 0.0, False),
        (0x7F, np.nan, 0.0, True),
        (0xFF, np.nan, 0.0, True),
        (0x7E, np.nan, 0.0, False),
    ],
)
def test_comparison_of_codes(code: int, value: float, magnitude: float, passes: bool) -> None:
    codes = np.array([[[code]]], dtype=np.uint8)
    if passes:
        compare_rows("cache", codes, torch.uint8, rows_of([value], magnitude), "fp8")
    else:
        with pytest.raises(AssertionError, match="cache: 1 of 1"):
            compare_rows("cache", codes, torch.uint8, rows_of([value], magnitude), "fp8")


def test_comparison_is_strict_about_shape() -> None:
    bits = bits_of(torch.zeros(5, 1, 64))
    with pytest.raises(AssertionError, match="expected shape"):
        compare_rows("out", bits, torch.float32, exact_rows(np.zeros((5, 8, 64))))


def does_nothing(**arguments):
    results = (arguments["q"].reshape(arguments["q"].shape[0], -1), arguments["k"])
    return (*results, arguments["key_cache"], arguments["value_cache"])


def one_nan(**arguments):
    results = HONEST(**arguments)
    results[0][2, 5] = torch.nan
    return results


def one_element_off(**arguments):
    results = HONEST(**arguments)
    results[1][4, 1, 63] *= 1.1
    return results


def stray_cache_write(**arguments):
    results = HONEST(**arguments)
    results[3][1, 15, 1, 63] = 0
    return results


def write_before_the_cache(**arguments):
    results = HONEST(**arguments)
    cache = arguments["key_cache"]
    cache.as_strided((1,), (1,), cache.storage_offset() - 1).zero_()
    return results


def writes_its_input(**arguments):
    results = HONEST(**arguments)
    arguments["q"][0, 0, 0] = 7
    return results


def rotates_the_cached_value(**arguments):
    return HONEST(**{**arguments, "v": arguments["v"].roll(1, -1)})


def swaps_scales(**arguments):
    return HONEST(**{**arguments, "k_scale": arguments["v_scale"], "v_scale": arguments["k_scale"]})


def other_style(**arguments):
    return HONEST(**{**arguments, "is_neox": not arguments["is_neox"]})


def turns_the_other_way(**arguments):
    half = arguments["cos_sin"].shape[1] // 2
    cos, sin = arguments["cos_sin"].split(half, dim=1)
    return HONEST(**{**arguments, "cos_sin": torch.cat((cos, -sin), dim=1)})


def token_index_as_position(**arguments):
    return HONEST(**{**arguments, "pos": torch.arange(arguments["q"].shape[0])})


def other_dtype(**arguments):
    results = HONEST(**arguments)
    return (results[0].float(), *results[1:])


def forgets_k_out(**arguments):
    results = HONEST(**arguments)
    return (results[0], arguments["k"], *results[2:])


BROKEN = [
    does_nothing, one_nan, one_element_off, stray_cache_write, write_before_the_cache, writes_its_input,
    other_style, rotates_the_cached_value, swaps_scales, turns_the_other_way, token_index_as_position,
    other_dtype, forgets_k_out,
]  # fmt: skip


@pytest.mark.parametrize("operation", BROKEN, ids=lambda operation: operation.__name__)
def test_broken_operation_fails(operation) -> None:
    case = Case(slots=[3, 17, 0, 127, 64], k_scale=0.25, v_scale=4.0)
    verify(case, HONEST)
    with pytest.raises(AssertionError):
        verify(case, operation)


def test_outputs_prefilled_with_the_answer_do_not_help() -> None:
    """An operation that does nothing fails although q_out and k_out hold the right values already."""
    call = build(Case(q_out="contiguous", k_out="contiguous"))
    HONEST(**call.arguments)
    again = build(Case())
    again.arguments.update(q_out=call.arguments["q_out"], k_out=call.arguments["k_out"])
    with pytest.raises(AssertionError, match="key_cache"):
        verify(
            again,
            lambda **a: (a["q_out"].view(5, -1), a["k_out"], a["key_cache"], a["value_cache"]),
        )


def test_cpu_faults_must_be_raised() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        verify(Case(slots=[3, 17, 0, 127, 128]), lambda **arguments: None)
