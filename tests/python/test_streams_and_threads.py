"""Streams, graphs, host threads and devices: work follows the current stream, faults keep to their device.

KVROPE_TEST_SECONDS: how long the threads of one test run (1 second; a minute or more for a soak).
"""

import os
import re
import threading
import time
from typing import Any, Callable

import kvrope
import pytest
import torch

from cases import Call, Case, build, check_recorded_fault, verify
from cuda_calls import FAULTS, captured, copy_into
from elements import bits_of
from oracle import expect
from tensors import LAYOUTS

SECONDS = float(os.environ.get("KVROPE_TEST_SECONDS", "1"))
NUM_THREADS = 8
SPIN = 20_000_000  # clock cycles: about ten milliseconds


def run_threads(work: Callable[[int], None], count: int = NUM_THREADS) -> None:
    """work(i) in a thread for each i, all at once; an exception of any of them is this test's."""
    start, failures = threading.Barrier(count), []

    def guarded(i: int) -> None:
        try:
            start.wait()
            work(i)
        except BaseException as error:  # noqa: BLE001  (pytest's own failures are no Exception)
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def various_call(device: str, i: int) -> Call:
    """Another size, layout and dtype for each i."""
    dtype = (torch.bfloat16, torch.float16, torch.float32)[i % 3]
    fp8 = dict(cache_dtype=torch.float8_e4m3fn, k_scale=0.3, v_scale=0.7) if i % 2 else {}
    num_tokens = (1, 7, 64, 130, 257, 300, 513, 2100)[i]
    return build(Case(device, num_tokens=num_tokens, seed=i, dtype=dtype, layout=LAYOUTS[i % 6], **fp8))


def test_eight_threads_for_a_while(device: str) -> None:
    """Each on its own stream, calls of other shapes; every result is compared, none is lost or mixed up."""
    calls = [various_call(device, i) for i in range(NUM_THREADS)]
    expected = [verify(call.copy()).run() for call in calls]
    if device == "cuda":
        torch.cuda.synchronize()
    counts = [0] * NUM_THREADS
    until = time.monotonic() + SECONDS

    def work(i: int) -> None:
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            while time.monotonic() < until or counts[i] < 3:
                results = calls[i].run()
                for result, want in zip(results, expected[i], strict=True):
                    assert torch.equal(result.view(torch.uint8), want.view(torch.uint8)), f"thread {i}"
                counts[i] += 1

    run_threads(work)
    assert min(counts) >= 3


def test_threads_that_ask_for_faults_and_make_them(device: str) -> None:
    """CPU: each call raises in its own thread. CUDA: the record is that of one launch, never a mixture."""
    calls = []
    for i in range(NUM_THREADS):
        slots = list(range(32))
        slots[i + 3] = 1000 + i  # row i + 3 has value 1000 + i
        calls.append(build(Case(device, num_tokens=32, slots=slots)))
    if device == "cpu":

        def raises(i: int) -> None:
            for _ in range(20):
                with pytest.raises(IndexError, match=rf"slot_mapping\[{i + 3}\] is {1000 + i}"):
                    calls[i].run()

        run_threads(raises)
        return

    for _ in range(20):
        streams = [torch.cuda.Stream() for _ in range(NUM_THREADS)]
        torch.cuda.synchronize()

        def launch(i: int) -> None:
            with torch.cuda.stream(streams[i]):
                for _ in range(5):
                    calls[i].run()
                fault = kvrope.last_fault(device)
                assert fault.kind == "slot_out_of_range" and fault.value - 1000 == fault.row - 3, fault

        run_threads(launch)
        torch.cuda.synchronize()
        with pytest.raises(IndexError, match="slot_mapping"):
            kvrope.check(device)
        assert kvrope.last_fault(device) is None


def test_faults_are_whole_while_threads_launch_and_clear(cuda: str) -> None:
    """Six threads make faults, two ask and clear: kind, row and value of each report are one launch's."""
    calls = []
    for i in range(6):
        slots = list(range(32))
        slots[i + 3] = 1000 + i
        calls.append(build(Case(cuda, num_tokens=32, slots=slots)))
    torch.cuda.synchronize()
    until = time.monotonic() + SECONDS

    def work(i: int) -> None:
        stream = torch.cuda.Stream()
        while time.monotonic() < until:
            if i < 6:
                with torch.cuda.stream(stream):
                    calls[i].run()
                continue
            fault = kvrope.last_fault(cuda)
            assert fault is None or (fault.kind == "slot_out_of_range" and fault.value - fault.row == 997), (
                fault
            )
            try:
                kvrope.check(cuda)
            except IndexError as error:
                value, row = map(int, re.search(r"gives (\d+) for row (\d+)", str(error)).groups())
                assert value - row == 997, error

    run_threads(work)
    for call in calls:
        call.run()
    with pytest.raises(IndexError):
        kvrope.check(cuda)
    assert kvrope.last_fault(cuda) is None


def test_asking_while_another_thread_captures(cuda: str) -> None:
    """Waiting for the whole device would make the other thread's graph invalid."""
    outputs = dict(q_out="contiguous", k_out="contiguous")
    call, faulty = build(Case(cuda, **outputs)), build(Case(cuda, slots=[1000] * 5, **outputs))
    call.run()
    expected = call.arguments["q_out"].clone()
    torch.cuda.synchronize()
    captures, asked = threading.Event(), threading.Event()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            call.run()
            captures.set()
            assert asked.wait(60)
            call.run()

    def ask() -> None:
        assert captures.wait(60)
        try:
            faulty.run()
            assert kvrope.last_fault(cuda).value == 1000
            with pytest.raises(IndexError, match="1000"):
                kvrope.check(cuda)
            assert kvrope.last_fault(cuda) is None
        finally:
            asked.set()

    run_threads(lambda i: (capture, ask)[i](), 2)
    call.arguments["q_out"].zero_()
    graph.replay()
    assert torch.equal(call.arguments["q_out"], expected)


def test_second_host_thread_with_a_stream_of_its_own(cuda: str) -> None:
    """It waits, fills q, calls and reads on its stream; the first thread does other work meanwhile."""
    call = build(Case(cuda, num_tokens=64))
    expected, q = call.copy().run()[0], call.arguments["q"].clone()
    other = build(Case(cuda, num_tokens=300, num_blocks=40))
    call.arguments["q"].fill_(torch.nan)
    torch.cuda.synchronize()
    result: list[torch.Tensor] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SPIN)
            call.arguments["q"].copy_(q)
            result.append(call.run()[0] * 1)
        stream.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        other.run()
    thread.join()
    assert torch.equal(result[0], expected)


@pytest.mark.parametrize("side", [False, True], ids=["default_stream", "side_stream"])
def test_the_call_waits_for_the_stream_and_the_stream_for_it(cuda: str, side: bool) -> None:
    """A long wait before the inputs are there; the inputs are ruined right behind the call."""
    call = build(Case(cuda, num_tokens=300, num_blocks=40))
    expected = [result.clone() for result in call.copy().run()]
    good = {name: call.arguments[name].clone() for name in ("q", "k", "v", "pos", "slot_mapping", "cos_sin")}
    ruin = {"slot_mapping": -1, "pos": 0}
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    for _ in range(3):
        for name in good:
            call.arguments[name].fill_(ruin.get(name, torch.nan))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SPIN)
            for name, value in good.items():
                call.arguments[name].copy_(value)
            results = call.run()
            for name in good:
                call.arguments[name].fill_(ruin.get(name, torch.nan))
        stream.synchronize()
        assert all(torch.equal(got, want) for got, want in zip(results, expected, strict=True))


def test_another_stream_does_not_wait(cuda: str) -> None:
    """A call beside a long wait on another, non-blocking stream is done before it: nothing synchronises."""
    call = build(Case(cuda))
    busy, free = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(free):
        call.run()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(50 * SPIN)
        end = torch.cuda.Event()
        end.record()
    with torch.cuda.stream(free):
        call.run()
    free.synchronize()
    assert not end.query()
    torch.cuda.synchronize()


ALL_INPUTS = dict(
    num_tokens=8, num_kv_rows=9, slots=range(9), swa=range(20, 120), offs=[0] * 8, pos=range(8),
    k_scale=0.5, v_scale=[2.0, 3.0], cache_dtype=torch.float8_e4m3fn,
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outputs", [None, "contiguous"], ids=["omitted", "given"])
def test_replay_follows_every_input(cuda: str, outputs: str | None, layout: str) -> None:
    """New contents of rows, slots, window table, positions, offsets, table and scales, one by one."""
    call = build(Case(cuda, layout=layout, q_out=outputs, k_out=outputs, zeros_out=outputs, **ALL_INPUTS))
    replay = captured(call)
    verify(call, replay)
    changes: list[dict[str, Any]] = [
        dict(slot_mapping=[8, 7, 6, -1, 4, 3, -1, 1, 0]),
        dict(swa_slot_mapping=[*range(60, 68), -1, *range(69, 128), *[-1] * 32]),
        dict(pos=[9, 8, 7, 6, 5, 4, 3, 2]),
        dict(offs=[100, -2, 30, 4, 5, 6, 7, 250]),
        dict(cos_sin=torch.linspace(-1, 1, 64).repeat(256, 1)),
        dict(k_scale=0.25),
        dict(v_scale=[0.1, 7.0]),
        dict(q=torch.randn(8, 8, 64), k=torch.randn(9, 2, 64), v=torch.randn(9, 2, 64)),
    ]
    for change in changes:
        copy_into(call, **change)
        verify(call, replay)


def test_replays_on_other_streams(cuda: str) -> None:
    """A graph runs on the stream that replays it, not on the one that captured it."""
    call = build(Case(cuda, q_out="contiguous", num_tokens=300, num_blocks=40))
    expected = call.copy().run()[0]
    q = call.arguments["q"].clone()
    replay = captured(call)
    for _ in range(3):
        call.arguments["q"].fill_(torch.nan)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SPIN)
            call.arguments["q"].copy_(q)
            result = replay()[0] * 1
        stream.synchronize()
        assert torch.equal(result, expected)


def test_graph_of_many_layers(cuda: str) -> None:
    """Calls that share q, k and v, each with caches of its own and each reading what the last one wrote."""
    layers = [build(Case(cuda, num_tokens=16, seed=i, q_out="in_place", k_out="in_place")) for i in range(6)]
    for layer in layers[1:]:
        layer.arguments.update({name: layers[0].arguments[name] for name in ("q", "k", "q_out", "k_out")})
    on_cpu = [layer.copy(device="cpu") for layer in layers]
    for layer in on_cpu[1:]:
        layer.arguments.update({name: on_cpu[0].arguments[name] for name in ("q", "k", "q_out", "k_out")})
    warm_up = layers[0].copy()
    warm_up.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer.run()
    for _ in range(3):
        graph.replay()
        for layer in on_cpu:
            layer.run()
    torch.cuda.synchronize()
    for got, want in zip(layers, on_cpu, strict=True):
        for name in ("q", "k", "key_cache", "value_cache"):
            assert (bits_of(got.arguments[name]) == bits_of(want.arguments[name])).all(), name


def needs_two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"two CUDA devices are needed, {torch.cuda.device_count()} is there")


def test_stream_of_the_tensors_device(cuda: str) -> None:
    """Current device 0, tensors on device 1: the launch is on device 1's current stream."""
    needs_two_devices()
    call = build(Case("cuda:1", num_tokens=300, num_blocks=40))
    expected, q = call.copy().run()[0], call.arguments["q"].clone()
    call.arguments["q"].fill_(torch.nan)
    stream = torch.cuda.Stream(device=1)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        with torch.cuda.device(1):
            torch.cuda._sleep(SPIN)
        call.arguments["q"].copy_(q)
        assert torch.cuda.current_device() == 0
        result = call.run()[0] * 1
        assert torch.cuda.current_device() == 0
    stream.synchronize()
    assert torch.equal(result, expected)


def test_each_device_has_its_own_fault_record(cuda: str) -> None:
    needs_two_devices()
    calls = {
        device: build(Case(device, **FAULTS[what]))
        for device, what in (("cuda:0", "slot"), ("cuda:1", "position"))
    }
    for call in calls.values():
        call.run()
    for device, call in calls.items():  # clearing one leaves the other
        check_recorded_fault(torch.device(device), expect(call.arguments).faults)


@pytest.mark.parametrize(
    "argument", ["k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale"]
)
def test_tensors_of_two_devices_are_refused(cuda: str, argument: str) -> None:
    needs_two_devices()
    call = build(Case("cuda:0", k_scale=0.5))
    call.arguments[argument] = call.arguments[argument].to("cuda:1")
    with pytest.raises(ValueError, match=rf": {argument}: .*cuda:0.*cuda:1"):
        call.run()
