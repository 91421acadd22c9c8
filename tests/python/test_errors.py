"""Bad input: the right exception, naming the argument, what it got and what fits; nothing written.

Every case runs on the devices and on meta tensors: the checker is one.
"""

import re
from typing import Any

import kvrope
import pytest
import torch

from bad_arguments import BAD, Bad, blank_like
from cases import Case, build
from elements import Memory

OPERATION = "fused_qk_rope_reshape_and_cache"


def bad_arguments(bad: Bad, device: str) -> dict[str, Any]:
    arguments = build(Case(device, layout=bad.layout)).arguments
    changes = dict(bad.change(arguments))
    if (width := changes.pop("cos_sin_width", None)) is not None:
        changes["cos_sin"] = blank_like(arguments, "cos_sin", (256, width))
    return {**arguments, **changes}


def check_message(message: str, argument: str, fits: str) -> None:
    assert message.startswith(f"{OPERATION}: {argument}: "), message
    assert "expected" in message and "got" in message, message
    assert re.search(fits, message), message


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_argument(device: str, bad: Bad) -> None:
    arguments = bad_arguments(bad, device)
    memory = Memory({name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)})
    with pytest.raises(bad.error) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    assert type(error.value) is bad.error
    check_message(str(error.value), bad.argument, bad.fits)
    memory.compare()


def to_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_argument_on_meta_tensors(bad: Bad) -> None:
    arguments = {name: to_meta(value) for name, value in bad_arguments(bad, "cpu").items()}
    with pytest.raises(bad.error) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    check_message(str(error.value), bad.argument, bad.fits)


TENSORS = [
    "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale", "v_scale", "offs",
    "q_out", "k_out", "zeros_out", "swa_slot_mapping", "q_weight", "k_weight", "q_scale",
]  # fmt: skip


def full_call(device: str) -> dict[str, Any]:
    """Every optional tensor present."""
    case = Case(
        device, k_scale=0.5, v_scale=2.0, offs=[0] * 5, pos=[1, 2, 3, 4, 5], swa=list(range(128)),
        q_out="contiguous", k_out="contiguous", zeros_out="contiguous", norm="qk",
        q_out_dtype=torch.float8_e5m2, q_scale=0.3,
    )  # fmt: skip
    return build(case).arguments


@pytest.mark.parametrize("argument", TENSORS[1:])
@pytest.mark.parametrize("other", ["meta", "cpu"])
def test_tensor_on_another_device(device: str, other: str, argument: str) -> None:
    """Also a CPU scalar among CUDA tensors: never a device read through a host pointer."""
    if other == device:
        pytest.skip("that is the device")
    arguments = full_call(device)
    moved = arguments[argument]
    arguments[argument] = torch.empty_strided(moved.shape, moved.stride(), dtype=moved.dtype, device=other)
    with pytest.raises(ValueError) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    check_message(str(error.value), argument, rf"{device}.*{other}")


@pytest.mark.parametrize("value", [0.5, 1, True, "0.5", [0.5]], ids=str)
@pytest.mark.parametrize("argument", ["k_scale", "v_scale", "q_scale"])
def test_scale_that_is_no_tensor(device: str, argument: str, value: Any) -> None:
    arguments = build(Case(device, q_out_dtype=torch.float8_e4m3fn)).arguments
    memory = Memory({name: tensor for name, tensor in arguments.items() if isinstance(tensor, torch.Tensor)})
    with pytest.raises((TypeError, ValueError), match=argument):
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, argument: value})
    memory.compare()


@pytest.mark.parametrize(
    "argument", ["q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin"]
)
def test_required_tensor_is_none(device: str, argument: str) -> None:
    arguments = full_call(device)
    with pytest.raises((TypeError, ValueError), match=argument):
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, argument: None})
    arguments.update(q_out=None, k_out=None, zeros_out=None)
    with pytest.raises((TypeError, ValueError), match=argument):
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, argument: None})


def test_kv_only_rows_need_a_k_out_of_all_rows(device: str) -> None:
    arguments = build(Case(device, num_kv_rows=7)).arguments
    with pytest.raises(ValueError) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, "k_out": torch.zeros_like(arguments["k"][:5])})
    check_message(str(error.value), "k_out", "7")


@pytest.mark.parametrize("argument", ["q", "k", "q_out", "key_cache"])
def test_pending_negation(argument: str) -> None:
    """torch may hand over a view whose sign is still to be flipped: refused, whether it is read or written."""
    arguments = build(Case("cpu", dtype=torch.float32, q_out="contiguous")).arguments
    shape = arguments[argument].shape
    arguments[argument] = torch.zeros(shape, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match=f"{argument}: expected a tensor that holds its elements, got one with a pending negation"):
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)


def test_failed_allocation_is_what_it_is(device: str) -> None:
    """Running out of memory for an omitted output is no fault of an argument."""
    arguments = build(Case(device)).arguments
    arguments["k"] = arguments["k"][:1, :1, :1].expand(2**31 - 1, 128, 512)
    with pytest.raises(RuntimeError, match="memory"):
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)


@pytest.mark.parametrize("section", [16, "abc", [16.0, 8, 8], [None, 16, 16], [[16, 8, 8]], [2**70, 0, 0],
                                     torch.tensor([16, 8, 8])], ids=str)  # fmt: skip
def test_section_that_is_no_sequence_of_integers(device: str, section: Any) -> None:
    arguments = build(Case(device)).arguments
    with pytest.raises(TypeError, match="mrope_section"):
        kvrope.fused_qk_rope_reshape_and_cache(**arguments, mrope_section=section)


def test_unknown_keyword_and_wrong_option_types(device: str) -> None:
    arguments = build(Case(device)).arguments
    for wrong in (dict(rotary_dims=64), dict(rotary_dim="64"), dict(kv_cache_dtype=None)):
        with pytest.raises(TypeError):
            kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, **wrong})
