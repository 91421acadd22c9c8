"""Elements that a call writes belong to one argument alone. Elements count, not address ranges."""

from typing import Any

import kvrope
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import Call, Case, build, verify
from elements import Memory
from tensors import GUARD, buffer
from without_data import converted_call, on_meta


def check_refused(call: Call, *names: str) -> None:
    """A ValueError that names the arguments, before anything is written; the same from tensors without data."""
    memory = Memory(call.tensors())
    with pytest.raises(ValueError) as error:
        call.run()
    message = str(error.value)
    assert message.startswith(f"fused_qk_rope_reshape_and_cache: {names[0]}: expected"), message
    assert all(name in message for name in names) and "got" in message, message
    memory.compare()
    with pytest.raises(ValueError) as error:
        on_meta(call).run()
    assert str(error.value) == message
    with FakeTensorMode() as mode, pytest.raises(ValueError) as error:
        converted_call(call, mode.from_tensor).run()
    assert str(error.value) == message


def check_allowed(call: Call) -> None:
    on_meta(call).run()
    with FakeTensorMode() as mode:
        converted_call(call, mode.from_tensor).run()
    verify(call)


OUTPUTS = ["q_out", "k_out", "zeros_out", "key_cache", "value_cache"]


def call_with_outputs(device: str, **changes: Any) -> Call:
    return build(Case(device, q_out="contiguous", k_out="contiguous", zeros_out="contiguous", **changes))


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_output_with_stride_zero(device: str, dim: int, name: str) -> None:
    call = call_with_outputs(device)
    tensor = call.arguments[name]
    if name == "q_out" and dim != 0:
        pytest.skip("cannot be viewed as (T, QH * D), which is an error of its own")
    call.arguments[name] = tensor.select(dim, 0).unsqueeze(dim).expand(tensor.shape)
    check_refused(call, name)


@pytest.mark.parametrize("name", ["k_out", "zeros_out"])
def test_output_that_folds_onto_itself(device: str, name: str) -> None:
    """Rows that begin before the last one ends, without a stride of zero."""
    call = call_with_outputs(device)
    tensor = call.arguments[name]
    heads = tensor.shape[1]
    call.arguments[name] = tensor.as_strided(tensor.shape, (heads * 64 - 1, 64, 1), GUARD)
    check_refused(call, name)


def test_cache_with_blocks_that_overlap(device: str) -> None:
    call = build(Case(device))
    for name in ("key_cache", "value_cache"):
        cache = call.arguments[name]
        call.arguments[name] = cache.as_strided(cache.shape, (15 * 128, 128, 64, 1), GUARD)
        check_refused(call, name)
        call.arguments[name] = cache


INPUTS = {"q_out": ["k", "v"], "k_out": ["q", "v"], "zeros_out": ["q", "k", "v"]}


@pytest.mark.parametrize(
    "output, source", [(output, source) for output in INPUTS for source in INPUTS[output]]
)
def test_output_over_a_foreign_input(device: str, output: str, source: str) -> None:
    """One shared element is enough."""
    call = call_with_outputs(device, q_heads=2)
    arguments = call.arguments
    both = buffer(4096, torch.bfloat16, device)
    arguments[output] = both.as_strided((5, 2, 64), (128, 64, 1), 0)
    arguments[source] = both.as_strided((5, 2, 64), (128, 64, 1), 5 * 128 - 1)
    check_refused(call, output, source)


@pytest.mark.parametrize("shift", [1, 64, 128, 5 * 512 - 1])
@pytest.mark.parametrize("output, source", [("q_out", "q"), ("k_out", "k")])
def test_output_shifted_over_its_own_input(device: str, output: str, source: str, shift: int) -> None:
    """In place means exactly the same view."""
    call = build(Case(device, kv_heads=8))
    tensor = call.arguments[source]
    moved = buffer(2 * tensor.numel() + 2 * GUARD, tensor.dtype, device)
    call.arguments[source] = moved.as_strided(tensor.shape, tensor.stride(), GUARD)
    call.arguments[output] = moved.as_strided(tensor.shape, tensor.stride(), GUARD + shift)
    check_refused(call, output, source)


def test_in_place_needs_equal_strides(device: str) -> None:
    """The same memory walked in another order."""
    call = build(Case(device, num_tokens=2, kv_heads=2))
    k = call.arguments["k"]
    call.arguments["k_out"] = k.transpose(0, 1)
    check_refused(call, "k_out", "k")


PAIRS = [(a, b) for i, a in enumerate(OUTPUTS) for b in OUTPUTS[:i]]


@pytest.mark.parametrize("a, b", PAIRS)
def test_two_outputs_in_one_place(device: str, a: str, b: str) -> None:
    call = build(Case(device, q_heads=2, q_out="contiguous", k_out="contiguous", zeros_out="contiguous"))
    arguments = call.arguments
    whole = buffer(2 * 8 * 16 * 128, torch.bfloat16, device)
    start = {name: 0 for name in OUTPUTS}
    for name in (a, b):
        tensor = arguments[name]
        arguments[name] = whole.as_strided(tensor.shape, tensor.stride(), start[name])
    memory = Memory(call.tensors())
    with pytest.raises(ValueError) as error:
        call.run()
    assert a in str(error.value) and b in str(error.value)
    memory.compare()


@pytest.mark.parametrize(
    "name", ["slot_mapping", "pos", "cos_sin", "k_scale", "offs", "swa_slot_mapping", "q_scale"]
)
@pytest.mark.parametrize("output", ["zeros_out", "key_cache"])
def test_output_over_indices_table_or_scale(device: str, output: str, name: str) -> None:
    """The bytes are shared although the dtypes differ."""
    call = call_with_outputs(
        device,
        k_scale=0.5,
        offs=[0] * 5,
        pos=[0, 1, 2, 3, 4],
        table_rows=5,
        swa=list(range(128)),
        num_blocks=8,
        q_scale=0.3,
        q_out_dtype=torch.float8_e4m3fn,
    )
    tensor = call.arguments[name]
    whole = call.arguments[output].flatten()
    shared = torch.empty(0, dtype=tensor.dtype, device=device)
    start = -(-call.arguments[output].storage_offset() * 2 // tensor.element_size())
    assert whole.numel() * 2 > tensor.element_size()
    strides = torch.empty(tensor.shape, device="meta").stride()
    call.arguments[name] = shared.set_(call.arguments[output].untyped_storage(), start, tensor.shape, strides)
    check_refused(call, output, name)


@pytest.mark.parametrize("strides", [(512, 64, 1), (1024, 128, 2)])
@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_q_out_over_q(device: str, fp8: torch.dtype, strides: tuple[int, ...]) -> None:
    """In place needs one dtype: codes beside or between the bytes of q would be read as values."""
    call = build(Case(device))
    q = call.arguments["q"] = call.arguments["q"].clone()
    call.arguments["q_out"] = q.view(fp8).as_strided(q.shape, strides)
    check_refused(call, "q_out", "q")


def test_fp8_q_out_beside_q_is_allowed(device: str) -> None:
    """Codes in the pad columns of q's own rows."""
    call = build(Case(device))
    padded = torch.zeros((5, 8 * 64 + 256), dtype=torch.bfloat16, device=device)
    padded[:, :512] = call.arguments["q"].flatten(1)
    call.arguments["q"] = padded[:, :512].unflatten(1, (8, 64))
    call.arguments["q_out"] = padded[:, 512:].view(torch.float8_e4m3fn).unflatten(1, (8, 64))
    check_allowed(call)


def test_q_out_over_the_key_cache(device: str) -> None:
    call = build(Case(device))
    cache = call.arguments["key_cache"]
    call.arguments["q_out"] = (
        cache[:5].flatten().as_strided((5, 8, 64), (512, 64, 1), cache.storage_offset() + 640)
    )
    memory = Memory(call.tensors())
    with pytest.raises(ValueError, match="q_out.*key_cache|key_cache.*q_out"):
        call.run()
    memory.compare()


def test_caches_one_element_apart(device: str) -> None:
    """K and V of one page, V shifted so that its first element is K's last."""
    call = build(Case(device, layout="packed_heads"))
    value_cache = call.arguments["value_cache"]
    call.arguments["value_cache"] = value_cache.as_strided(
        value_cache.shape, value_cache.stride(), value_cache.storage_offset() - 1
    )
    check_refused(call, "value_cache", "key_cache")


# What is allowed: nothing here shares an element.


def test_interleaved_outputs_are_allowed(device: str) -> None:
    """q_out, k_out and zeros_out as columns of one buffer, between the columns of q, k and v."""
    call = build(Case(device, q_heads=2))
    columns = buffer(5 * 6 * 128, torch.bfloat16, device).view(5, 6, 2, 64)
    columns.fill_(torch.nan)
    for i, name in enumerate(("q", "q_out", "k", "zeros_out", "v", "k_out")):
        view = columns[:, i]
        if name in ("q", "k", "v"):
            view.copy_(call.arguments[name])
        call.arguments[name] = view
    check_allowed(call)


def test_even_and_odd_elements_are_allowed(device: str) -> None:
    """Outputs on the even elements of a buffer whose odd ones hold the inputs."""
    call = build(Case(device))
    for source, output in (("q", "q_out"), ("k", "k_out")):
        tensor = call.arguments[source]
        both = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=device)
        both[..., 1] = tensor
        call.arguments[source], call.arguments[output] = both[..., 1], both[..., 0]
    check_allowed(call)


def test_outputs_in_place_in_one_qkv_buffer_are_allowed(device: str) -> None:
    check_allowed(build(Case(device, strides="fused_qkv", q_out="in_place", k_out="in_place")))


@pytest.mark.parametrize("layout", ["packed_pages", "packed_heads"])
def test_packed_pages_are_allowed(device: str, layout: str) -> None:
    check_allowed(build(Case(device, layout=layout, page_padding=7)))


def test_zeros_out_between_heads_is_allowed(device: str) -> None:
    """zeros_out in the pad columns of a padded q."""
    call = build(Case(device))
    padded = torch.zeros((5, 8, 128), dtype=torch.bfloat16, device=device)
    padded[..., :64] = call.arguments["q"]
    call.arguments["q"], call.arguments["zeros_out"] = padded[..., :64], padded[..., 64:]
    check_allowed(call)


def test_empty_outputs_overlap_nothing(device: str) -> None:
    call = build(Case(device, num_tokens=0, pos=[], q_out="contiguous", zeros_out="contiguous"))
    call.arguments["zeros_out"] = call.arguments["q_out"]
    results = kvrope.fused_qk_rope_reshape_and_cache(**call.arguments)
    assert results[0].shape == (0, 512)


def test_large_caches_are_judged_quickly(device: str) -> None:
    """Interleaved views of a cache of a million slots: the test of overlap is arithmetic, not a walk."""
    shape, blocks = (65536, 16, 1, 4), 65536
    page = torch.zeros(blocks * 16 * 8, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    call = build(Case(device, head_size=4, q_heads=1, kv_heads=1))
    call.arguments["key_cache"] = page.as_strided(shape, (128, 8, 8, 2), 0)
    call.arguments["value_cache"] = page.as_strided(shape, (128, 8, 8, 2), 1)
    check_allowed(call)
