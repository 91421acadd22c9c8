"""rope and reshape_and_cache as torch's citizens: schemas, signatures, opcheck, compilation, graphs."""

import inspect
from typing import Any

import kvrope
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import Call, Case, verify
from cuda_calls import captured
from halves import rope_call, write_call
from test_torch_citizen import check_one_compilation, fresh_compiler  # noqa: F401
from without_data import converted_call, on_meta

FP8 = torch.float8_e4m3fn
MUTATED = {"rope": ["q_out", "k_out"], "reshape_and_cache": ["key_cache", "value_cache"]}
POSITIONAL = {
    "rope": ["q", "k", "pos", "cos_sin", "is_neox"],
    "reshape_and_cache": [
        "k", "v", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale", "flash_layout",
    ],
}  # fmt: skip
DEFAULTS = {
    "rope": dict(
        offs=None, rotary_dim=None, rotary_dim_offset=0, q_out=None, k_out=None, q_scale=None,
        mrope_section=None, mrope_interleaved=False, q_weight=None, k_weight=None, eps=1e-6,
        weight_plus_one=False,
    ),
    "reshape_and_cache": dict(apply_scale=True, swa_slot_mapping=None, kv_cache_dtype="auto"),
}  # fmt: skip
names = pytest.mark.parametrize("name", MUTATED)


@names
def test_schema(name: str) -> None:
    schema = getattr(torch.ops.kvrope, name).default._schema
    mutated = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    assert mutated == MUTATED[name] and not schema.returns
    assert {a.name for a in schema.arguments} == {*POSITIONAL[name], *DEFAULTS[name]}


@names
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(kvrope, name)).parameters
    assert [n for n, p in parameters.items() if p.kind == p.POSITIONAL_OR_KEYWORD] == POSITIONAL[name]
    assert {n: p.default for n, p in parameters.items() if p.kind == p.KEYWORD_ONLY} == DEFAULTS[name]
    fused = inspect.signature(kvrope.fused_qk_rope_reshape_and_cache).parameters
    assert [n for n, default in DEFAULTS[name].items() if fused[n].default != default] == []
    documentation = inspect.getdoc(getattr(kvrope, name))
    assert [n for n in parameters if n not in documentation] == []
    assert all(error in documentation for error in ("ValueError", "TypeError", "IndexError"))


CALLS = {
    "rope": lambda device: rope_call(Case(device)),
    "rope of q": lambda device: rope_call(Case(device, q_out="odd_offset"), has_k=False),
    "rope of all": lambda device: rope_call(
        Case(device, num_kv_rows=7, offs=[1, 2, 3, 4, -5], pos=[9] * 5, rotary_dim=32, rotary_dim_offset=5,
             is_neox=False, k_out="transposed")),
    "rope with three axes": lambda device: rope_call(
        Case(device, mrope_section=(7, 12, 13), mrope_interleaved=True, pos_layout="columns", norm="qk")),
    "rope to fp8": lambda device: rope_call(
        Case(device, q_out_dtype=FP8, q_scale=[0.3, 7.0], q_out="transposed", num_kv_rows=7)),
    "rope of q to fp8": lambda device: rope_call(
        Case(device, q_out_dtype=FP8, q_scale=0.3, mrope_section=(7, 12, 13)), has_k=False),
    "rope in place": lambda device: rope_call(
        Case(device, q_out="in_place", k_out="in_place", strides="fused_qkv")),
    "write": lambda device: write_call(Case(device)),
    "write of all": lambda device: write_call(
        Case(device, num_kv_rows=7, slots=[3, 7, -1, 9], swa=range(128), k_scale=0.5, v_scale=[2.0, 3.0],
             cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2", layout="x_split")),
    "write fp8": lambda device: write_call(Case(device, k_scale=0.5, cache_dtype=FP8, layout="shuffled")),
}  # fmt: skip
every_call = pytest.mark.parametrize("what", CALLS, ids=lambda what: what.replace(" ", "_"))


def operator_call(call: Call) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The dispatcher's form: outputs are there, at their place."""
    operator = getattr(torch.ops.kvrope, call.operation).default
    arguments = dict(call.arguments)
    for output, source in (("q_out", "q"), ("k_out", "k")):
        if output in arguments and arguments[output] is None and arguments[source] is not None:
            arguments[output] = torch.empty_like(arguments[source])
    by_place = [a.name for a in operator._schema.arguments if not a.kwarg_only]
    keywords = {name: value for name, value in arguments.items() if name not in by_place}
    return operator, tuple(arguments[name] for name in by_place), keywords


@every_call
def test_opcheck(device: str, what: str) -> None:
    operator, args, keywords = operator_call(CALLS[what](device))
    tests = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if "fp8" not in what and what != "rope in place":  # it takes neither fp8 nor one tensor twice
        tests.append("test_schema")
    results = torch.library.opcheck(operator, args, keywords, test_utils=tests)
    assert set(results.values()) == {"SUCCESS"}, results


def description(results: Any) -> Any:
    return results and [
        result if result is None else (result.shape, result.dtype, result.stride()) for result in results
    ]


@every_call
def test_results_without_data(device: str, what: str) -> None:
    call = CALLS[what](device)
    with FakeTensorMode() as mode:
        fake = description(converted_call(call, mode.from_tensor).run())
    meta = description(on_meta(call).run())
    assert fake == meta == description(call.run())


def halves(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """What a layer does that cannot fuse everything: k is changed between the halves."""
    q_out, k_out = kvrope.rope(q * 2, k, pos, cos_sin, True)
    only_q, none = kvrope.rope(q, None, pos, cos_sin, False, q_out=q.clone())
    assert none is None
    kvrope.reshape_and_cache(k_out + 1, v, key_cache, value_cache, slot_mapping, k_scale, None, True)
    return q_out + 1, only_q * 1, k_out * 1, key_cache[0] * 2


def test_compiled_with_symbolic_token_count(device: str, fresh_compiler: Any) -> None:  # noqa: F811
    check_one_compilation(halves, device, "aot_eager")


def test_compiled_by_inductor(cuda: str, fresh_compiler: Any) -> None:  # noqa: F811
    """On the CPU it takes a minute for the arithmetic around; test_torch_citizen.py has a case there."""
    check_one_compilation(halves, cuda, "inductor")


@every_call
def test_captured(cuda: str, what: str) -> None:
    call = CALLS[what](cuda)
    verify(call, captured(call))


@every_call
def test_one_launch_without_synchronisation(cuda: str, what: str) -> None:
    call = CALLS[what](cuda)
    call.copy().run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda.set_sync_debug_mode("error")
        try:
            call.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    on_device = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    if not on_device:
        pytest.skip("the profiler sees no kernels here")
    assert len(on_device) == 1, on_device
