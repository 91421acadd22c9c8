"""What torch expects of an operator: schema, meta kernel, opcheck, compilation, threads."""

import threading
from typing import Any, Callable

import kvrope
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cases import Call, Case, build, verify
from elements import bits_of

OPERATOR = torch.ops.kvrope.fused_qk_rope_reshape_and_cache.default
KEYWORD_ONLY = {argument.name for argument in OPERATOR._schema.arguments if argument.kwarg_only}


def operator_arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The dispatcher's form of a call: outputs at their place, no output_zeros."""
    arguments = dict(call.arguments)
    arguments.pop("output_zeros")
    for output, source in (("q_out", "q"), ("k_out", "k")):
        if arguments[output] is None:
            arguments[output] = torch.empty_like(arguments[source])
    keywords = {name: arguments.pop(name) for name in KEYWORD_ONLY & arguments.keys()}
    return tuple(arguments.values()), keywords


def test_schema() -> None:
    schema = OPERATOR._schema
    mutated = [
        argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
    ]
    assert mutated == ["key_cache", "value_cache", "q_out", "k_out", "zeros_out"]
    assert not schema.returns
    assert [argument.name for argument in schema.arguments] == [
        "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale", "v_scale",
        "is_neox", "flash_layout", "apply_scale", "offs", "q_out", "k_out", "zeros_out", "swa_slot_mapping",
        "rotary_dim", "rotary_dim_offset", "kv_cache_dtype", "q_scale", "match_unfused", "mrope_section",
        "mrope_interleaved", "q_weight", "k_weight", "eps", "weight_plus_one",
    ]  # fmt: skip
    assert [argument.name for argument in schema.arguments if argument.kwarg_only][0] == "rotary_dim"


OPCHECKED = {
    "plain": dict(),
    "everything": dict(
        k_scale=0.5, v_scale=[2.0, 3.0], offs=[1, 2, 3, 4, -5], pos=[9] * 5, swa=list(range(128)),
        zeros_out="contiguous", slots=[3, 7, -1, 9], num_kv_rows=7, rotary_dim=32, rotary_dim_offset=5,
        is_neox=False,
    ),
    "fused qkv": dict(strides="fused_qkv"),
    "x-split": dict(layout="x_split", full_width=True, dtype=torch.float16),
    "shuffled": dict(layout="shuffled", dtype=torch.float32, zeros_out="padded"),
    "packed": dict(layout="packed_pages", k_out="transposed"),
    "fp8 bytes": dict(cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2", k_scale=0.25),
    "fp8": dict(cache_dtype=torch.float8_e4m3fn, v_scale=0.25),
    "norm": dict(norm="qk", weight_plus_one=True, eps=0.01),
    "mrope": dict(mrope_section=(7, 12, 13), pos_layout="columns"),
    "interleaved": dict(mrope_section=(3, 5, 8), mrope_interleaved=True, rotary_dim=32, offs=[0] * 5),
    "fp8 queries": dict(q_out_dtype=torch.float8_e4m3fn, q_scale=[0.3, 7.0], norm="q"),
    "norm of k": dict(norm="k", weight_dtype=torch.float32, strides="fused_qkv"),
}  # fmt: skip


@pytest.mark.parametrize("what", OPCHECKED, ids=lambda what: what.replace(" ", "_"))
def test_opcheck(device: str, what: str) -> None:
    args, keywords = operator_arguments(build(Case(device, **OPCHECKED[what])))
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(
        isinstance(value, torch.Tensor) and value.dtype.itemsize == 1 and value.dtype.is_floating_point
        for value in args
    ):
        tests.remove(
            "test_schema"
        )  # it compares with allclose, which torch has not for fp8; "fp8 bytes" stands in
    results = torch.library.opcheck(OPERATOR, args, keywords, test_utils=tests)
    assert set(results.values()) == {"SUCCESS"}, results


def test_operator_is_the_function(device: str) -> None:
    """The dispatcher's op with given outputs does what the Python function does."""
    call = build(
        Case(device, q_out="contiguous", k_out="contiguous", zeros_out="contiguous", offs=[0, 1, 2, 3, -5])
    )

    def operation(**arguments: Any) -> tuple[torch.Tensor, ...]:
        args, keywords = operator_arguments(Call(arguments))
        assert OPERATOR(*args, **keywords) is None
        outputs = (
            arguments["k_out"],
            arguments["key_cache"],
            arguments["value_cache"],
            arguments["zeros_out"],
        )
        return (arguments["q_out"].view(5, -1), *outputs)

    call.arguments["pos"].copy_(torch.tensor([1, 2, 3, 4, 5]))
    verify(call, operation)


@pytest.mark.parametrize("fake", [False, True], ids=["meta", "fake"])
def test_results_without_data(fake: bool) -> None:
    """Shapes, dtypes and strides of the results from meta and fake tensors."""
    call = build(Case(num_tokens=7, num_kv_rows=9, v_head_size=32, output_zeros=True))
    if fake:
        with FakeTensorMode() as mode:
            arguments = {
                name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for name, value in call.arguments.items()
            }
            results = kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    else:
        arguments = {
            name: value.to("meta") if isinstance(value, torch.Tensor) else value
            for name, value in call.arguments.items()
        }
        results = kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    real = call.run()
    for result, expected in zip(results, real, strict=True):
        assert (result.shape, result.dtype, result.stride()) == (
            expected.shape,
            expected.dtype,
            expected.stride(),
        )
        assert result.device.type == ("cpu" if fake else "meta")


def decode_step(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """What a model's layer does around the call."""
    q_out, k_out, *_ = kvrope.fused_qk_rope_reshape_and_cache(
        q * 2,
        k,
        v,
        key_cache,
        value_cache,
        slot_mapping,
        pos,
        cos_sin,
        k_scale,
        None,
        True,
        True,
        output_zeros=False,
    )
    return q_out + 1, k_out * 1


def step_arguments(device: str, num_tokens: int, seed: int = 0) -> list[torch.Tensor]:
    call = build(Case(device, num_tokens=num_tokens, seed=seed, k_scale=0.5, num_blocks=8))
    names = ("q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale")
    return [call.arguments[name].contiguous().clone() for name in names]


def check_equal_to_eager(
    function: Callable[..., Any], compiled: Callable[..., Any], arguments: list[torch.Tensor]
) -> None:
    """Results and mutated arguments, to the bit."""
    eager = [argument.clone() for argument in arguments]
    expected = function(*eager)
    results = compiled(*arguments)
    for got, want in zip((*results, *arguments), (*expected, *eager), strict=True):
        assert (bits_of(got) == bits_of(want)).all()


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check_one_compilation(step: Callable[..., Any], device: str, backend: str) -> None:
    """It serves every T; results and caches are eager's, to the bit."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for num_tokens in (5, 2, 9, 64):
        arguments = step_arguments(device, num_tokens)
        for index in (0, 1, 2, 5, 6):  # q, k, v, slot_mapping, pos
            torch._dynamo.mark_dynamic(arguments[index], 0)
        check_equal_to_eager(step, compiled, arguments)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_with_symbolic_token_count(device: str, backend: str, fresh_compiler) -> None:
    check_one_compilation(decode_step, device, backend)


def test_compiled_with_every_size_dynamic(device: str, fresh_compiler) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(decode_step, fullgraph=True, backend=counter, dynamic=True)
    check_equal_to_eager(decode_step, compiled, step_arguments(device, 5))
    graphs = counter.frame_count  # one, or one more where a pass of the compiler restarts the analysis
    for num_tokens in (2, 9, 33, 64):
        check_equal_to_eager(decode_step, compiled, step_arguments(device, num_tokens))
    assert counter.frame_count == graphs


def test_traced_with_symbolic_sizes(device: str) -> None:
    """Sizes are symbols outside torch.compile too, where the operator is called as in an eager call."""
    traced = make_fx(decode_step, tracing_mode="symbolic")(*step_arguments(device, 5))
    check_equal_to_eager(decode_step, traced, step_arguments(device, 9))


def in_place_on_a_clone(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    rotated = k.clone()
    kvrope.fused_qk_rope_reshape_and_cache(
        q, rotated, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True,
        k_out=rotated, output_zeros=False,
    )  # fmt: skip
    return (rotated * 1,)


def reads_the_cache(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    before = key_cache.sum()
    arguments = (q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True)
    kvrope.fused_qk_rope_reshape_and_cache(*arguments, output_zeros=False)
    return before, key_cache[0] * 2, value_cache.clone()


def two_calls(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """Two equal calls are two writes: between them the cache changes."""
    arguments = (q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True)
    first = kvrope.fused_qk_rope_reshape_and_cache(*arguments, output_zeros=False)[1]
    key_cache.mul_(-1)
    value_cache.zero_()
    second = kvrope.fused_qk_rope_reshape_and_cache(*arguments, output_zeros=False)[1]
    return first, second, key_cache * 1


def result_is_not_used(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """Only the cache is wanted; the call may not be dropped."""
    arguments = (q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True)
    kvrope.fused_qk_rope_reshape_and_cache(*arguments, output_zeros=False)
    return ()


def outputs_are_views(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
    """q and k in place in one fused buffer made inside the graph."""
    qkv = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), dim=1)
    q, k, v = (part.unflatten(1, (-1, 64)) for part in qkv.split((512, 128, 128), dim=1))
    kvrope.fused_qk_rope_reshape_and_cache(
        q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True, q_out=q,
        k_out=k, output_zeros=False,
    )  # fmt: skip
    return (qkv * 1,)


FUNCTIONS = [in_place_on_a_clone, reads_the_cache, two_calls, result_is_not_used, outputs_are_views]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mutation_under_compilation(device: str, backend: str, function, fresh_compiler) -> None:
    """Bit-equal to eager: the cache is updated exactly once a call, and outputs given in place are seen."""
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    check_equal_to_eager(function, compiled, step_arguments(device, 5))
    check_equal_to_eager(function, compiled, step_arguments(device, 5, seed=1))


def test_strided_arguments_under_inductor(device: str, fresh_compiler) -> None:
    """The operator receives the strides that eager would pass."""

    def function(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale):
        q, k = q.transpose(0, 1).contiguous().transpose(0, 1) + 0, k.flip(0)
        return kvrope.fused_qk_rope_reshape_and_cache(
            q, k, v, key_cache.transpose(1, 2), value_cache.transpose(1, 2), slot_mapping, pos, cos_sin,
            k_scale, None, True, True, output_zeros=False,
        )[:2]  # fmt: skip

    arguments = step_arguments(device, 5)
    for index in (3, 4):  # HND caches
        arguments[index] = arguments[index].transpose(1, 2).contiguous()
    check_equal_to_eager(function, torch.compile(function, fullgraph=True), arguments)


def test_error_under_compilation(device: str, fresh_compiler) -> None:
    """A shape that does not fit is an error of the same wording, not a wrong kernel."""
    arguments = step_arguments(device, 5)
    arguments[6] = arguments[6][:4]
    with pytest.raises(Exception, match=r"pos: expected shape"):
        torch.compile(decode_step, fullgraph=True, backend="aot_eager")(*arguments)


def test_threads(device: str) -> None:
    """Eight threads at once, each on its own tensors (and its own stream), bit-equal to one thread."""
    calls = [
        build(Case(device, num_tokens=64 + i, seed=i, cache_dtype=torch.float8_e4m3fn, k_scale=0.3))
        for i in range(8)
    ]
    expected = [[bits_of(result) for result in call.copy().run()] for call in calls]
    failures: list[str] = []
    start = threading.Barrier(8)

    def work(i: int) -> None:
        stream = torch.cuda.Stream() if device == "cuda" else None
        start.wait()
        with torch.cuda.stream(stream):
            for _ in range(50):
                results = calls[i].run()
            if stream is not None:
                stream.synchronize()
        for result, want in zip(results, expected[i], strict=True):
            if not (bits_of(result) == want).all():
                failures.append(f"thread {i}")

    if device == "cuda":
        torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_thread_pays_no_attention_to_the_number_of_them(device: str) -> None:
    """The CPU kernel's own threads do not change a bit."""
    before = torch.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2, 7):
            torch.set_num_threads(num_threads)
            results.append(
                [bits_of(result) for result in build(Case(device, num_tokens=513, num_blocks=64)).run()]
            )
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all((got == want).all() for got, want in zip(other, results[0], strict=True))
