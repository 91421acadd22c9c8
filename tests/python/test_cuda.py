"""What only a GPU shows: streams, recorded faults, one launch, and the same bits as the CPU."""

from typing import Any

import kvrope
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from cases import Call, Case, build, check_recorded_fault, verify
from cuda_calls import CALLS, FAULTS, run_script
from elements import Memory, bits_of, storage_bytes
from oracle import expect


def test_current_stream(cuda: str) -> None:
    """A long wait, then q is filled, then the call, then a read, all on one non-blocking stream."""
    call = build(Case(cuda, num_tokens=512, num_blocks=40))
    expected, q = call.copy().run()[0], call.arguments["q"].clone()
    for _ in range(5):
        call.arguments["q"].fill_(torch.nan)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            call.arguments["q"].copy_(q)
            q_out = call.run()[0] * 1
        stream.synchronize()
        assert torch.equal(q_out, expected)


def test_chain_of_dependent_calls(cuda: str) -> None:
    """Each launch reads what the kernel before it wrote, and is read by the one after it, without a gap."""
    call = build(Case(cuda, num_tokens=4096, num_blocks=260, q_out="contiguous"))
    eager = call.copy()
    q = call.arguments["q"].clone()
    for i in range(50):
        call.arguments["q"].copy_(q).mul_(1 + i)
        result = call.run()[0] + 0
        call.arguments["q_out"].fill_(torch.nan)
        if i % 10 == 0:
            eager.arguments["q"].copy_(q * (1 + i))
            torch.cuda.synchronize()
            expected = eager.run()[0]
            torch.cuda.synchronize()
            assert torch.equal(result, expected)


def test_rotating_twice_in_place(cuda: str) -> None:
    """Back to back: the second launch starts from the first one's result."""
    call = build(
        Case(cuda, num_tokens=4096, num_blocks=260, q_out="in_place", k_out="in_place", dtype=torch.float32)
    )
    step_by_step = call.copy(device="cpu")
    for _ in range(10):
        call.run()
        step_by_step.run()
    assert (bits_of(call.arguments["q"]) == bits_of(step_by_step.arguments["q"])).all()
    assert (bits_of(call.arguments["key_cache"]) == bits_of(step_by_step.arguments["key_cache"])).all()


def test_no_synchronisation(cuda: str) -> None:
    """No call waits for the device or copies from it, whatever is omitted."""
    calls = [build(Case(cuda, **options)) for options in CALLS.values()]
    for call in calls:
        call.copy().run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in calls:
            call.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_scratch_memory(cuda: str) -> None:
    """Nothing is allocated but omitted outputs."""
    given = build(Case(cuda, q_out="contiguous", k_out="contiguous", zeros_out="contiguous"))
    omitted = build(Case(cuda, output_zeros=True))
    for call, outputs in ((given, 0), (omitted, 3)):
        call.run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        results = call.run()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == outputs
        del results


@pytest.mark.parametrize("what", CALLS, ids=lambda what: what.replace(" ", "_"))
def test_one_launch(cuda: str, what: str) -> None:
    call = build(Case(cuda, **CALLS[what]))
    call.copy().run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call.run()
        torch.cuda.synchronize()
    on_device = [
        event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    if not on_device:
        pytest.skip("the profiler sees no kernels here")
    assert len(on_device) == 1, on_device


def test_first_faulting_launch_is_the_one_reported(cuda: str) -> None:
    first, second = build(Case(cuda, **FAULTS["slot"])), build(Case(cuda, **FAULTS["position"]))
    good = build(Case(cuda))
    for call in (good, first, second, good):
        call.run()
    check_recorded_fault(torch.device(cuda), expect(first.arguments).faults)
    second.run()
    check_recorded_fault(torch.device(cuda), expect(second.arguments).faults)


def test_asking_for_the_fault(cuda: str) -> None:
    """None, None again; the fault as often as asked; cleared by check alone. The device in every form."""
    assert kvrope.last_fault(cuda) is None and kvrope.last_fault(torch.device("cuda:0")) is None
    kvrope.check(cuda)
    build(Case(cuda, **FAULTS["slot"])).run()
    for device in (cuda, "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        assert kvrope.last_fault(device) == kvrope.Fault("slot_out_of_range", "slot_mapping", 2, 128)
    with pytest.raises(IndexError, match="slot_mapping.*128|128.*slot_mapping"):
        kvrope.check(cuda)
    kvrope.check(cuda)
    assert kvrope.last_fault(cuda) is None


def test_fault_right_after_the_last_was_cleared(cuda: str) -> None:
    """Clearing is complete when check() returns: a launch on another stream cannot lose its fault to it."""
    call = build(Case(cuda, **FAULTS["slot"]))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(200):
        with torch.cuda.stream(stream):
            call.run()
        stream.synchronize()
        with pytest.raises(IndexError):
            kvrope.check(cuda)
        with torch.cuda.stream(stream):
            call.run()
        stream.synchronize()
        assert kvrope.last_fault(cuda) is not None
        with pytest.raises(IndexError):
            kvrope.check(cuda)


def test_asking_waits_for_the_current_stream(cuda: str) -> None:
    """A launch behind a long wait is seen by who asks on its stream, and does not hold up who asks on another."""
    call = build(Case(cuda, **FAULTS["slot"], q_out="contiguous", k_out="contiguous"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        call.run()
    assert kvrope.last_fault(cuda) is None and not stream.query()
    with torch.cuda.stream(stream):
        assert kvrope.last_fault(cuda) == kvrope.Fault("slot_out_of_range", "slot_mapping", 2, 128)
        with pytest.raises(IndexError):
            kvrope.check(cuda)


def test_faults_of_every_row_at_once(cuda: str) -> None:
    """A launch in which each of many rows is a fault reports one of them."""
    verify(Case(cuda, num_tokens=1000, slots=range(10_000, 11_000), num_blocks=8))
    verify(Case(cuda, num_tokens=1000, pos=range(256, 1256), num_blocks=70))


def test_check_after_every_call(cuda: str) -> None:
    """KVROPE_CHECK=1 makes a fault an error of its own call, and stays out of captures."""
    script = """
    import pytest
    bad, good = build(Case("cuda", slots=[3, 17, 128, 0, 64])), build(Case("cuda"))
    for _ in range(2):
        with pytest.raises(IndexError, match="slot_mapping"):
            bad.run()
        assert kvrope.last_fault("cuda") is None
        verify(good)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bad.run()
    graph.replay()
    assert kvrope.last_fault("cuda").row == 2
    print("done")
    """
    result = run_script(script, KVROPE_CHECK="1")
    assert result.returncode == 0 and "done" in result.stdout, result.stderr
    unchecked = run_script(
        "build(Case('cuda', slots=[3, 17, 128, 0, 64])).run()\nprint('done')", KVROPE_CHECK="0"
    )
    assert unchecked.returncode == 0, unchecked.stderr


def test_without_dependent_launch(cuda: str) -> None:
    result = run_script("verify(Case('cuda', num_tokens=99))\nprint('done')", KVROPE_PDL="0")
    assert result.returncode == 0 and "done" in result.stdout, result.stderr


def check_equal_bits(call: Call, on_cuda: Call, results: Any, cuda_results: Any) -> None:
    for cpu_result, cuda_result in zip(results, cuda_results, strict=True):
        assert (bits_of(cpu_result) == bits_of(cuda_result)).all()
    for name, tensor in call.tensors().items():
        assert (storage_bytes(tensor) == storage_bytes(on_cuda.arguments[name])).all(), name


@settings(max_examples=400)
@given(data=st.data())
def test_same_bits_as_the_cpu(cuda: str, data: st.DataObject) -> None:
    """Results and every byte of every buffer."""
    call = build(data.draw(strategies.cases("cpu")))
    on_cuda = call.copy(device=cuda)
    check_equal_bits(call, on_cuda, call.run(), on_cuda.run())


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", [None, *strategies.FP8], ids=str)
def test_same_bits_as_the_cpu_for_many_values(cuda: str, cache_dtype, dtype: torch.dtype) -> None:
    """Random bit patterns: subnormals, infinities and NaN among them, in q, k, v and the scales' reach."""
    generator = torch.Generator().manual_seed(1)
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    limits = torch.iinfo(integer)
    rows = [
        torch.randint(limits.min, limits.max, (512, heads, 64), generator=generator, dtype=integer).view(
            dtype
        )
        for heads in (8, 2, 2)
    ]
    for is_neox in (True, False):
        case = Case(
            num_tokens=512, num_blocks=40, dtype=dtype, cache_dtype=cache_dtype, k_scale=0.037, v_scale=3.0,
            is_neox=is_neox, rotary_dim=32, rotary_dim_offset=16,
        )  # fmt: skip
        call = build(case)
        for name, values in zip(("q", "k", "v"), rows, strict=True):
            call.arguments[name].view(integer).copy_(values.view(integer))
        on_cuda = call.copy(device=cuda)
        check_equal_bits(call, on_cuda, call.run(), on_cuda.run())


def test_other_device_than_the_current_one(cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    torch.cuda.set_device(0)
    verify(Case("cuda:1"))
    verify(Case("cuda:1", **FAULTS["slot"]))
    assert torch.cuda.current_device() == 0 and kvrope.last_fault("cuda:0") is None
    arguments = {**build(Case("cuda:0")).arguments, "v": build(Case("cuda:1")).arguments["v"]}
    memory = Memory({name: tensor for name, tensor in arguments.items() if isinstance(tensor, torch.Tensor)})
    with pytest.raises(ValueError, match=r": v: .*cuda:0.*cuda:1"):
        kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    memory.compare()
