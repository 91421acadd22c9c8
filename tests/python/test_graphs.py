"""CUDA graphs: capture with outputs given and omitted, replay with new contents, faults from a replay."""

from typing import Any

import kvrope
import pytest
import torch

from cases import Case, build, verify
from cuda_calls import CALLS, FAULTS, captured, copy_into, run_script
from elements import storage_bytes


@pytest.mark.parametrize("what", CALLS, ids=lambda what: what.replace(" ", "_"))
def test_graph(cuda: str, what: str) -> None:
    """Captured and replayed, then replayed with new contents of every input."""
    call = build(Case(cuda, **CALLS[what]))
    replay = captured(call)
    verify(call, replay)
    q, table = call.arguments["q"], call.arguments["cos_sin"]
    copy_into(
        call,
        q=torch.randn(q.shape),
        k=torch.randn(call.arguments["k"].shape),
        cos_sin=torch.rand(table.shape),
    )
    copy_into(call, v=torch.randn(call.arguments["v"].shape), pos=[5, 4, 3, 2, 1])
    verify(call, replay)


def test_graph_with_fewer_live_rows(cuda: str) -> None:
    """Static buffers of eight rows; the second batch has three, then only the table and the scale change."""
    slot_dtypes = [(slots, swa) for slots in (torch.int32, torch.int64) for swa in (torch.int32, torch.int64)]
    contents = []
    for slot_dtype, swa_dtype in slot_dtypes:
        case = Case(
            cuda, num_tokens=8, slots=range(8), slot_dtype=slot_dtype, swa=range(60, 100),
            swa_dtype=swa_dtype, k_scale=0.5, v_scale=3.0, cache_dtype=torch.float8_e4m3fn, pos=range(8),
        )  # fmt: skip
        call = build(case)
        replay = captured(call)
        verify(call, replay)
        for name in ("q", "k", "v"):
            call.arguments[name][3:] = torch.nan
        copy_into(call, slot_mapping=[20, 21, 22, -1, -1, -1, -1, -1])
        verify(call, replay)
        copy_into(call, cos_sin=torch.linspace(-1, 1, 64).repeat(256, 1), k_scale=0.25)
        verify(call, replay)
        contents.append([storage_bytes(call.arguments[name]) for name in ("key_cache", "value_cache")])
    for key, value in contents[1:]:
        assert (key == contents[0][0]).all() and (value == contents[0][1]).all()


def test_graph_on_a_side_stream(cuda: str) -> None:
    """The launch is recorded on the stream that captures, and follows new inputs."""
    call = build(Case(cuda, q_out="contiguous"))
    call.copy().run()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = call.run()
    assert (call.arguments["q_out"].view(torch.uint8) == 0x5A).all()  # recorded, not run

    def replay(**arguments: Any) -> Any:
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        return results

    verify(call, replay)
    copy_into(call, q=torch.randn(5, 8, 64))
    torch.cuda.synchronize()
    verify(call, replay)


def test_empty_batch_inside_capture(cuda: str) -> None:
    call = build(Case(cuda, num_tokens=0, pos=[]))
    verify(call, captured(call))


@pytest.mark.parametrize("what", FAULTS)
def test_fault_from_a_replayed_graph(cuda: str, what: str) -> None:
    """verify() asks for the record, its report and its end; each replay of the graph makes a new one."""
    call = build(Case(cuda, output_zeros=True, **FAULTS[what]))
    replay = captured(call)
    verify(call, replay)
    verify(call, replay)
    assert torch.ones(8, device=cuda).sum().item() == 8


def test_asking_during_capture_is_refused(cuda: str) -> None:
    call = build(Case(cuda))
    call.copy().run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call.run()
        for ask in (kvrope.last_fault, kvrope.check):
            with pytest.raises(ValueError, match="captur"):
                ask(cuda)
    graph.replay()
    assert not results[0].isnan().any()


def test_first_call_inside_capture(cuda: str) -> None:
    """Nothing in a process's first call, the fault record's address included, is refused during capture."""
    script = """
    call = build(Case("cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call.run()
    verify(call, lambda **arguments: (graph.replay(), results)[1])
    print("done")
    """
    result = run_script(script)
    assert result.returncode == 0 and "done" in result.stdout, result.stderr
