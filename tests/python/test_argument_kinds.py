"""Arguments of a kind that the operation does not take, and scales that are ignored."""

import warnings
from typing import Any, Callable

import kvrope
import pytest
import torch

from cases import Case, build, verify
from elements import Memory
from test_torch_citizen import OPERATOR, operator_arguments
from without_data import on_meta

BOOLS = [
    "is_neox",
    "flash_layout",
    "apply_scale",
    "output_zeros",
    "match_unfused",
    "mrope_interleaved",
    "weight_plus_one",
]


def memory_of(arguments: dict[str, Any]) -> Memory:
    return Memory({name: tensor for name, tensor in arguments.items() if isinstance(tensor, torch.Tensor)})


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("value", [1, 0, "yes", "", None, 1.0, [True], torch.tensor(True)], ids=repr)
def test_option_that_is_no_bool(name: str, value: Any) -> None:
    """torch would take anything for its truth: a 0 for GPT-J is a mistake as likely as an intention."""
    arguments = build(Case()).arguments
    memory = memory_of(arguments)
    with pytest.raises(TypeError) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, name: value})
    message = f"fused_qk_rope_reshape_and_cache: {name}: expected True or False, got "
    assert str(error.value) == message + repr(value)
    memory.compare()


def float_like(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape, device=x.device)


def nested(layout: torch.layout) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = [torch.zeros(2, 3, device=x.device), torch.zeros(3, 3, device=x.device)]
            return torch.nested.nested_tensor(parts, layout=layout)

    return make


def csr(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.zeros(4, 4, device=x.device).to_sparse_csr()


LAYOUT = r"expected a strided tensor, got (another layout|a nested one)"
KINDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], type[Exception], str]] = {
    "sparse": (lambda x: float_like(x).to_sparse(), ValueError, LAYOUT),
    "compressed": (csr, ValueError, LAYOUT),
    "nested": (nested(torch.strided), ValueError, LAYOUT),
    "jagged": (nested(torch.jagged), ValueError, LAYOUT),
    "quantized": (
        lambda x: torch.quantize_per_tensor(float_like(x), 0.1, 0, torch.quint8),
        TypeError, "expected dtype .* got quint8",
    ),
    "complex": (lambda x: float_like(x).to(torch.complex64), TypeError, "expected dtype .* got complex64"),
    "conjugate": (
        lambda x: float_like(x).to(torch.complex64).conj(), TypeError, "expected dtype .* got complex64",
    ),
    "negated": (
        lambda x: float_like(x).to(torch.complex64).conj().imag,
        ValueError, "expected a tensor that holds its elements, got .* negation",
    ),
    "zero tensor": (
        lambda x: torch._efficientzerotensor(x.shape, device=x.device),
        ValueError, "expected a tensor that holds its elements, got .* ZeroTensor",
    ),
}  # fmt: skip
TENSORS = [
    "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "offs", "q_out", "k_out",
    "zeros_out", "swa_slot_mapping",
]  # fmt: skip


SMALL = dict(q_heads=2, head_size=16, num_blocks=2, table_rows=8)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.replace(" ", "_"))
def test_tensor_of_another_kind(device: str, kind: str, name: str) -> None:
    """From function and operator: the checker's words, nothing written, the next call is fine."""
    outputs = dict(q_out="contiguous", k_out="contiguous", zeros_out="contiguous")
    case = Case(device, dtype=torch.float32, offs=[0] * 5, pos=[1] * 5, swa=range(32), **SMALL, **outputs)
    call = build(case)
    make, error_type, message = KINDS[kind]
    memory = memory_of({key: value for key, value in call.arguments.items() if key != name})
    call.arguments[name] = make(call.arguments[name])
    with pytest.raises(error_type, match=f"^fused_qk_rope_reshape_and_cache: {name}: {message}"):
        call.run()
    args, keywords = operator_arguments(call)
    with pytest.raises(error_type, match=f"^fused_qk_rope_reshape_and_cache: {name}: {message}"):
        OPERATOR(*args, **keywords)
    memory.compare()
    build(case).run()


@pytest.mark.parametrize("name", ["k_scale", "v_scale", "q_scale"])
@pytest.mark.parametrize("kind", ["sparse", "quantized", "complex", "conjugate", "negated", "zero tensor"])
def test_scale_of_another_kind(device: str, kind: str, name: str) -> None:
    call = build(Case(device, k_scale=0.5, v_scale=2.0, q_scale=0.3, q_out_dtype=torch.float8_e5m2))
    make, error_type, message = KINDS[kind]
    call.arguments[name] = make(call.arguments[name])
    with pytest.raises(error_type, match=f"^fused_qk_rope_reshape_and_cache: {name}: {message}"):
        call.run()


class Tagged(torch.Tensor):
    """A tensor with nothing but a type of its own."""


@pytest.mark.parametrize("name", TENSORS[:-1])
@pytest.mark.parametrize("make", [torch.nn.Parameter, lambda x, requires_grad: x.as_subclass(Tagged)],
                         ids=["parameter", "subclass"])  # fmt: skip
def test_subclasses_are_tensors(device: str, make: Any, name: str) -> None:
    call = build(
        Case(
            device, q_out="contiguous", k_out="contiguous", zeros_out="contiguous", offs=[0] * 5, pos=[1] * 5
        )
    )
    call.arguments[name] = make(call.arguments[name], requires_grad=False)
    verify(call)


@pytest.mark.parametrize("value", [[[0.0] * 64] * 64, object(), "text"], ids=["list", "object", "text"])
@pytest.mark.parametrize("name", TENSORS)
def test_argument_that_is_no_tensor(name: str, value: Any) -> None:
    """Named, and described in a few words whatever it holds."""
    arguments = build(Case()).arguments
    with pytest.raises(
        TypeError, match=f"^fused_qk_rope_reshape_and_cache: {name}: expected a tensor"
    ) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**{**arguments, name: value})
    assert len(str(error.value)) < 200


# Scales and apply_scale=False: neither read nor judged.

IGNORED: dict[str, Callable[[str], Any]] = {
    "other values": lambda device: torch.tensor(0.01, device=device),
    "NaN": lambda device: torch.tensor(float("nan"), device=device),
    "another shape": lambda device: torch.ones(3, 5, device=device),
    "another dtype": lambda device: torch.ones((), dtype=torch.float64, device=device),
    "another device": lambda device: torch.ones((), device="meta"),
    "a number": lambda device: 0.5,
    "sparse": lambda device: torch.ones(2, device=device).to_sparse(),
}


@pytest.mark.parametrize("what", ["another shape", "another dtype", "another device", "a number", "sparse"])
def test_the_queries_scale_is_never_ignored(device: str, what: str) -> None:
    call = build(Case(device, q_out_dtype=torch.float8_e5m2, apply_scale=False))
    call.arguments["q_scale"] = IGNORED[what](device)
    with pytest.raises((ValueError, TypeError), match="fused_qk_rope_reshape_and_cache: q_scale: expected"):
        call.run()


@pytest.mark.parametrize("what", IGNORED, ids=lambda what: what.replace(" ", "_"))
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_ignored_scales(device: str, cache_dtype: torch.dtype, what: str) -> None:
    call = build(Case(device, cache_dtype=cache_dtype, apply_scale=False))
    expected = verify(call.copy())
    call.arguments.update(k_scale=IGNORED[what](device), v_scale=IGNORED[what](device))
    call.run()
    expected.run()
    for name in ("key_cache", "value_cache"):
        got, want = call.arguments[name], expected.arguments[name]
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    if what != "a number":
        on_meta(build(Case(device, k_scale=torch.ones(3, 5), apply_scale=False))).run()


@pytest.mark.parametrize("what", ["another shape", "another dtype", "another device", "a number", "sparse"])
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales_that_count_are_judged(device: str, name: str, what: str) -> None:
    call = build(Case(device))
    call.arguments[name] = IGNORED[what](device)
    with pytest.raises((ValueError, TypeError), match=f"fused_qk_rope_reshape_and_cache: {name}: expected"):
        call.run()


TENSORS = [
    "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale", "v_scale",
    "q_scale", "q_out",
]  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("left", [0, 3])
def test_storage_that_has_become_too_small(device: str, name: str, left: int) -> None:
    """torch lets a storage be resized under its tensors: their elements are then anybody's."""
    scales = dict(k_scale=0.5, v_scale=2.0, q_scale=0.3, q_out_dtype=torch.float8_e5m2)
    case = Case(device, cache_dtype=torch.float8_e4m3fn, mrope_section=(7, 12, 13), **scales)
    arguments = build(case).arguments
    arguments[name] = arguments[name].clone()
    shape = tuple(arguments[name].shape)
    arguments[name].untyped_storage().resize_(left)
    memory = memory_of({key: value for key, value in arguments.items() if key != name})
    with pytest.raises(ValueError) as error:
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    expected = f"{name}: expected a storage that holds all elements of shape {shape}, got one of {left} bytes"
    assert str(error.value) == f"fused_qk_rope_reshape_and_cache: {expected}"
    memory.compare()


@pytest.mark.parametrize("name", ["key_cache", "value_cache", "q_out", "k_out", "zeros_out"])
def test_written_tensor_that_requires_grad(device: str, name: str) -> None:
    """As torch's own out= arguments: its gradient would be another's."""
    arguments = build(Case(device=device)).arguments
    rows = {output: torch.zeros_like(arguments["q"]) for output in ("q_out", "zeros_out")}
    arguments = {**arguments, **rows, "k_out": torch.zeros_like(arguments["k"])}
    arguments[name] = arguments[name].requires_grad_()
    memory = memory_of(arguments)
    with pytest.raises(ValueError, match=f": {name}: is written, and no gradient flows through the call"):
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    memory.compare()
    with torch.no_grad():
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)


@pytest.mark.parametrize("kind", [set, iter, dict.fromkeys, lambda sizes: dict.fromkeys(sizes).keys(), None])
def test_section_without_an_order(device: str, kind: Any) -> None:
    section = 7 if kind is None else kind((7, 12, 13))
    arguments = build(Case(device, mrope_section=(7, 12, 13))).arguments
    of_rope = {name: arguments[name] for name in ("q", "k", "pos", "cos_sin", "is_neox")}
    for operation, given in (("fused_qk_rope_reshape_and_cache", arguments), ("rope", of_rope)):
        with pytest.raises(TypeError, match=f"^{operation}: mrope_section: expected a list or tuple, got"):
            getattr(kvrope, operation)(**{**given, "mrope_section": section})


def test_subclass_among_the_options_is_asked(device: str) -> None:
    class Weight(torch.Tensor):
        asked: list[str] = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.asked.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    arguments = build(Case(device, norm="q")).arguments
    arguments["q_weight"] = arguments["q_weight"].as_subclass(Weight)
    kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    assert "kvrope.fused_qk_rope_reshape_and_cache.default" in Weight.asked
