"""Outputs: given, omitted, in place; complete for padding rows; empty batches."""

import itertools

import kvrope
import pytest
import torch

from cases import Case, build, verify
from elements import bits_of


@pytest.mark.parametrize("q_out", [None, "contiguous", "in_place"])
@pytest.mark.parametrize("k_out", [None, "contiguous", "in_place"])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_outputs_given_omitted_in_place(device: str, cache_dtype: torch.dtype, k_out, q_out) -> None:
    """k_out is rotated in the model's precision, whatever the cache; k stays as it is unless it is k_out."""
    for slots in ([3, 17, 0, 127, 64], [3, -1, 0, -1, 64], [3, 17]):
        verify(Case(device, slots=slots, q_out=q_out, k_out=k_out, cache_dtype=cache_dtype, k_scale=0.5))


@pytest.mark.parametrize("strides", ["contiguous", "fused_qkv", "odd_offset", "dim_stride_2"])
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("rotary_dim", [None, 32])
def test_in_place_in_every_memory(device: str, rotary_dim, is_neox: bool, strides: str) -> None:
    case = dict(strides=strides, is_neox=is_neox, rotary_dim=rotary_dim, num_tokens=9, num_kv_rows=12)
    in_place = verify(Case(device, q_out="in_place", k_out="in_place", **case))
    apart = build(Case(device, **case)).run()
    assert (bits_of(in_place.arguments["q"].reshape(9, -1)) == bits_of(apart[0])).all()
    assert (bits_of(in_place.arguments["k"]) == bits_of(apart[1])).all()


def test_equal_view_is_in_place_too(device: str) -> None:
    """Another tensor object over exactly q's memory."""
    call = build(Case(device, q_out="in_place", k_out="in_place"))
    expected = build(Case(device)).run()
    call.arguments["q_out"] = call.arguments["q"][:]
    call.arguments["k_out"] = call.arguments["k"][:]
    results = call.run()
    assert torch.equal(results[0], expected[0]) and torch.equal(results[1], expected[1])


@pytest.mark.parametrize("zeros_out", [None, "contiguous", "transposed", "odd_padded"])
@pytest.mark.parametrize("output_zeros", [True, False])
def test_zeros_out(device: str, output_zeros: bool, zeros_out) -> None:
    """A given zeros_out is filled and returned whatever output_zeros says."""
    call = verify(Case(device, zeros_out=zeros_out, output_zeros=output_zeros, slots=[3, -1, 0]))
    results = call.run()
    if zeros_out is None and not output_zeros:
        assert len(results) == 4
    else:
        assert results[4].shape == (5, 8, 64) and not results[4].any()


def test_defaults_and_positional_order(device: str) -> None:
    """The first nineteen arguments by position; output_zeros and apply_scale are on unless they are given."""
    arguments = build(
        Case(
            device, k_scale=0.5, cache_dtype=torch.float8_e4m3fn, offs=[0, -1, 2, 3, -9], pos=[5, 6, 7, 8, 9]
        )
    ).arguments
    names = [
        "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale", "v_scale",
        "is_neox", "flash_layout", "apply_scale", "offs", "q_out", "k_out", "output_zeros", "zeros_out",
        "swa_slot_mapping",
    ]  # fmt: skip
    by_name = kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, "output_zeros": True})
    by_name = [result.clone() for result in by_name]
    assert len(by_name) == 5 and not by_name[4].any()
    in_order = [arguments[name] for name in names]
    in_order[names.index("output_zeros")] = True
    for results in (
        kvrope.fused_qk_rope_reshape_and_cache(*in_order),
        kvrope.fused_qk_rope_reshape_and_cache(*in_order[:12], offs=arguments["offs"]),
    ):
        assert all((bits_of(got) == bits_of(want)).all() for got, want in zip(results, by_name, strict=True))


def test_results_are_the_given_tensors(device: str) -> None:
    call = build(Case(device, q_out="contiguous", k_out="transposed", zeros_out="transposed"))
    q_out, k_out, key_cache, value_cache, zeros_out = call.run()
    assert q_out.shape == (5, 8 * 64) and q_out.data_ptr() == call.arguments["q_out"].data_ptr()
    assert k_out is call.arguments["k_out"] and zeros_out is call.arguments["zeros_out"]
    assert key_cache is call.arguments["key_cache"] and value_cache is call.arguments["value_cache"]


def test_omitted_outputs_are_contiguous(device: str) -> None:
    q_out, k_out, _, _, zeros_out = build(Case(device, strides="transposed", output_zeros=True)).run()
    assert q_out.is_contiguous() and k_out.is_contiguous() and zeros_out.is_contiguous()


@pytest.mark.parametrize("q_out", [None, "contiguous", "in_place"])
def test_padding_rows_are_written(device: str, q_out) -> None:
    """Rows without a slot are rotated like any other."""
    call = verify(Case(device, slots=[-1, 3], q_out=q_out, k_out=q_out, output_zeros=True))
    everywhere = build(Case(device)).run()
    results = verify(Case(device, slots=[-1, 3])).run()
    assert torch.equal(results[0], everywhere[0]) and torch.equal(results[1], everywhere[1])
    assert call.arguments["slot_mapping"].tolist() == [-1, 3]


def test_same_bits_with_and_without_a_cache_write(device: str) -> None:
    for is_neox, dtype in itertools.product((True, False), (torch.float16, torch.float32)):
        case = dict(num_tokens=33, is_neox=is_neox, dtype=dtype)
        cached, padded = (build(Case(device, slots=slots, **case)).run() for slots in (range(33), [-1] * 33))
        assert (bits_of(cached[0]) == bits_of(padded[0])).all()
        assert (bits_of(cached[1]) == bits_of(padded[1])).all()


@pytest.mark.parametrize("outputs", [None, "contiguous", "in_place"])
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_empty_batch(device: str, layout: str, outputs) -> None:
    """No tokens: empty results of the right shape, caches untouched, and no error that surfaces later."""
    case = Case(device, num_tokens=0, pos=[], layout=layout, q_out=outputs, k_out=outputs, output_zeros=True)
    results = verify(case).run()
    assert [tuple(result.shape) for result in results[:2]] == [(0, 512), (0, 2, 64)]
    assert results[4].shape == (0, 8, 64)
    assert torch.ones(8, device=device).sum().item() == 8


def test_tokens_without_slots(device: str) -> None:
    verify(Case(device, num_tokens=3, slots=[]))


def test_one_token(device: str) -> None:
    for cache_dtype in (torch.bfloat16, torch.float8_e5m2):
        verify(Case(device, num_tokens=1, cache_dtype=cache_dtype, output_zeros=True))


def test_calls_follow_each_other(device: str) -> None:
    """A second call adds to the cache of the first."""
    first = verify(Case(device, slots=[3, 17, 0, 127, 64]))
    second = build(Case(device, slots=[4, 18, 1, 126, 65], seed=7))
    second.arguments.update({name: first.arguments[name] for name in ("key_cache", "value_cache")})
    verify(second)


def test_gradients_are_not_recorded(device: str) -> None:
    """The operation is for inference: it takes tensors that require gradients under no_grad."""
    call = build(Case(device))
    call.arguments["q"] = call.arguments["q"].clone().requires_grad_()
    with torch.no_grad():
        results = call.run()
    assert not results[0].requires_grad


def test_written_tensors_get_a_new_version(device: str) -> None:
    """Autograd sees that they changed."""
    arguments = build(Case(device, q_out="contiguous", k_out="contiguous", zeros_out="contiguous")).arguments
    names = ["key_cache", "value_cache", "q_out", "k_out", "zeros_out"]
    before = [arguments[name]._version for name in names]
    kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    assert all(arguments[name]._version > version for name, version in zip(names, before))
