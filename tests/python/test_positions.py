"""Positions: read from pos and offs, each of its own type, never derived from an index, never trusted."""

import kvrope
import pytest
import torch

from cases import Case, build, verify
from elements import bits_of

INTEGERS = [torch.int32, torch.int64]


@pytest.mark.parametrize("pos_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("offs_dtype", [None, *INTEGERS], ids=str)
@pytest.mark.parametrize("index_stride", [1, 2, 3])
def test_integer_types_and_strides(device: str, pos_dtype, offs_dtype, index_stride: int) -> None:
    offs = None if offs_dtype is None else [3, 0, -5, 200, 1]
    verify(
        Case(
            device,
            pos=[5, 6, 7, 8, 9],
            pos_dtype=pos_dtype,
            offs=offs and [3, 0, -5, 200, 1],
            offs_dtype=offs_dtype or torch.int64,
            index_stride=index_stride,
        )  # fmt: skip
    )


def test_position_width_does_not_change_the_result(device: str) -> None:
    outputs = [
        bits_of(build(Case(device, num_tokens=4, pos=[5, 6, 7, 8], pos_dtype=dtype)).run()[0])
        for dtype in INTEGERS
    ]
    assert (outputs[0] == outputs[1]).all()


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_continuous_batching(device: str, is_neox: bool) -> None:
    """Requests of differing lengths and starts in one batch: each token gets its request's position."""
    requests = [(0, 5), (37, 1), (100, 9), (250, 6), (3, 1)]  # start, length
    pos = [start + i for start, length in requests for i in range(length)]
    call = verify(Case(device, num_tokens=len(pos), pos=pos, is_neox=is_neox))
    together = call.run()
    first = 0
    for start, length in requests:
        rows = slice(first, first + length)
        alone = build(Case(device, num_tokens=length, pos=range(start, start + length), is_neox=is_neox))
        alone.arguments.update(
            {name: call.arguments[name][rows] for name in ("q", "k", "v")}, cos_sin=call.arguments["cos_sin"]
        )
        results = alone.run()
        assert (bits_of(results[0]) == bits_of(together[0][rows])).all()
        assert (bits_of(results[1]) == bits_of(together[1][rows])).all()
        first += length


def test_position_is_not_the_token_index(device: str) -> None:
    """Reversed and repeated positions."""
    verify(Case(device, pos=[4, 3, 2, 1, 0]))
    verify(Case(device, pos=[7, 7, 7, 0, 7]))


def test_offset_brings_a_position_back_into_the_table(device: str) -> None:
    call = verify(Case(device, num_tokens=1, table_rows=64, pos=[70], offs=[-10]))
    direct = build(Case(device, num_tokens=1, table_rows=64, pos=[60]))
    assert (bits_of(call.run()[0]) == bits_of(direct.run()[0])).all()


def with_foreign_rows(case: Case):
    """The table becomes rows 8..71 of a tensor whose other rows hold 7777."""
    call = build(case)
    table = call.arguments["cos_sin"]
    longer = torch.full((96, table.shape[1]), 7777.0, device=case.device)
    longer[8:72] = table
    call.arguments["cos_sin"] = longer[8:72]
    return call


OUT_OF_TABLE = {
    "behind": dict(pos=[63, 64, 5]),
    "far behind": dict(pos=[63, 2**31 - 1, 5]),
    "negative": dict(pos=[-1, 0, 63]),
    "smallest": dict(pos=[0, -(2**31), 63]),
    "offset behind": dict(pos=[40, 40, 40], offs=[0, 1, 24]),
    "offset negative": dict(pos=[5, 5, 5], offs=[-5, -6, 0]),
    "sum beyond 32 bits": dict(pos=[2**31 - 1, 0, 1], offs=[1, 0, 0]),
    "sum below 32 bits": dict(pos=[-(2**31), 0, 1], offs=[-1, 0, 0]),
    "every row": dict(pos=[64, 65, 66]),
}


@pytest.mark.parametrize("pos_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("offs_dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("what", OUT_OF_TABLE, ids=lambda what: what.replace(" ", "_"))
def test_position_out_of_table(device: str, what: str, pos_dtype, offs_dtype) -> None:
    """CPU: IndexError, nothing written. CUDA: NaN outputs, not cached, fault recorded, other rows exact."""
    case = Case(
        device, num_tokens=3, table_rows=64, pos_dtype=pos_dtype, offs_dtype=offs_dtype, **OUT_OF_TABLE[what],
        q_out="contiguous", k_out="contiguous", zeros_out="contiguous",
    )  # fmt: skip
    verify(with_foreign_rows(case))


@pytest.mark.parametrize("position", [2**31, 2**32 + 5, 2**40, 2**63 - 1, -(2**63), -(2**32) + 5])
def test_position_beyond_32_bits(device: str, position: int) -> None:
    verify(with_foreign_rows(Case(device, num_tokens=3, table_rows=64, pos=[5, position, 6])))


@pytest.mark.parametrize(
    "pos, offs", [(2**63 - 1, 1), (2**63 - 1, 2**63 - 1), (-(2**63), -1), (-(2**63), -(2**63))]
)
def test_sum_beyond_64_bits(device: str, pos: int, offs: int) -> None:
    """pos + offs would wrap; the row is out of range whatever number the report gives."""
    call = with_foreign_rows(Case(device, num_tokens=2, table_rows=64, pos=[5, pos], offs=[0, offs]))
    if device == "cpu":
        with pytest.raises(IndexError, match=r"pos"):
            call.run()
        return
    q_out, k_out = call.run()[:2]
    assert q_out[1].isnan().all() and k_out[1].isnan().all() and not q_out[0].isnan().any()
    fault = kvrope.last_fault(device)
    assert (fault.kind, fault.row) == ("position_out_of_range", 1)
    with pytest.raises(IndexError):
        kvrope.check(device)


PADDING = {
    "negative slot": dict(slots=[3, -1, 4]),
    "past T_slot": dict(slots=[3]),
    "evicted": dict(slots=[3, 2, 4], swa=[0, 0, -1, 5, 6]),
}


@pytest.mark.parametrize("padding", PADDING, ids=lambda what: what.replace(" ", "_"))
def test_padding_row_out_of_table_becomes_zero_without_fault(device: str, padding: str) -> None:
    for pos in ([0, 64, 63], [0, -1, 63], [0, 2**31 - 1, 63]):
        case = Case(device, num_tokens=3, table_rows=64, pos=pos, **PADDING[padding])
        call = verify(with_foreign_rows(case))
        q_out, k_out = call.run()[:2]
        assert not bits_of(q_out)[1].any() and not bits_of(k_out)[1].any()


def test_row_with_bad_slot_is_not_padding(device: str) -> None:
    """Its position is judged as any other row's."""
    verify(with_foreign_rows(Case(device, num_tokens=3, table_rows=64, pos=[0, 64, 1], slots=[3, 128, 4])))


def test_kv_only_rows_have_no_position(device: str) -> None:
    verify(Case(device, num_tokens=2, num_kv_rows=6, pos=[1, 2], table_rows=3))


def test_empty_table(device: str) -> None:
    """No position fits a table without rows; padding rows are zero, others are faults."""
    verify(Case(device, num_tokens=2, table_rows=0, pos=[0, 0], slots=[-1, -1]))
    verify(Case(device, num_tokens=2, table_rows=0, pos=[0, 0], slots=[-1, 5]))
