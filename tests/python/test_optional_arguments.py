"""Optional arguments together: every pair of choices is in some call."""

import itertools
from typing import Any, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import Call, Case, build, verify
from cuda_calls import captured
from tensors import LAYOUTS
from test_torch_citizen import OPERATOR, operator_arguments
from without_data import converted_call, on_meta

Choice = dict[str, Any]
FP8 = torch.float8_e4m3fn

CHOICES: dict[str, dict[str, Choice]] = {
    "layout": {name: dict(layout=name) for name in LAYOUTS},
    "k_scale": {"none": {}, "scalar": dict(k_scale=0.5), "one": dict(k_scale=[0.5]),
                "heads": dict(k_scale=[0.5, 3.0])},
    "v_scale": {"none": {}, "scalar": dict(v_scale=0.7), "one": dict(v_scale=[0.7]),
                "heads": dict(v_scale=[0.7, 2.0])},
    "apply_scale": {"applied": {}, "ignored": dict(apply_scale=False)},
    "offs": {"none": {}, "int32": dict(offs=[2, -1, 0, 3, -9], offs_dtype=torch.int32),
             "int64": dict(offs=[9] * 5)},
    "pos": {"int64": dict(pos=[9, 1, 30, 2, 9]),
            "int32": dict(pos=[9] * 5, pos_dtype=torch.int32, index_stride=2)},
    "slots": {"all": {}, "padded": dict(slots=[3, -1, 7, 2, -5], slot_dtype=torch.int32),
              "fewer": dict(slots=[3, 9]), "none": dict(slots=[])},
    "window": {"none": {}, "int32": dict(swa=list(range(127, -1, -1))),
               "int64": dict(swa=list(range(128)), swa_dtype=torch.int64)},
    "q_out": {"omitted": {}, "given": dict(q_out="odd_offset"), "strided": dict(q_out="dim_stride_2"),
              "in place": dict(q_out="in_place"), "fp8": dict(q_out_dtype=FP8, q_scale=[0.5, 3.0]),
              "fp8 strided": dict(q_out="dim_stride_2", q_out_dtype=torch.float8_e5m2, q_scale=0.3)},
    "k_out": {"omitted": {}, "given": dict(k_out="transposed"), "in place": dict(k_out="in_place")},
    "zeros_out": {"unwanted": {}, "allocated": dict(output_zeros=True), "given": dict(zeros_out="padded")},
    "rotary": {"whole": {}, "part": dict(rotary_dim=32, rotary_dim_offset=5)},
    "mrope": {"none": {}, "contiguous": dict(mrope_section=(5, 7)),
              "interleaved": dict(mrope_section=(6, 5), mrope_interleaved=True, pos_layout="columns"),
              "one axis": dict(mrope_section=(3, 0), axes=1)},
    "rows": {"q": {}, "kv only": dict(num_kv_rows=7)},
    "style": {"neox": {}, "gptj": dict(is_neox=False, full_width=True)},
    "dtype": {"bf16": {}, "fp16": dict(dtype=torch.float16, table_dtype=torch.float16),
              "fp32": dict(dtype=torch.float32)},
    "cache": {"own": {}, "bytes": dict(cache_dtype=torch.uint8, kv_cache_dtype="fp8_e5m2"),
              "e4m3": dict(cache_dtype=torch.float8_e4m3fn), "e5m2": dict(cache_dtype=torch.float8_e5m2)},
    "strides": {"contiguous": {}, "fused": dict(strides="fused_qkv")},
    "norm": {"none": {}, "both": dict(norm="qk", weight_stride=2), "q": dict(norm="q", weight_plus_one=True),
             "k": dict(norm="k", weight_dtype=torch.float32, eps=0.01)},
    "rounding": {"fused": {}, "unfused": dict(options=dict(match_unfused=True))},
}  # fmt: skip

Row = dict[str, str]


def pairs_of(row: Row) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(itertools.combinations(row.items(), 2))


def all_pairs() -> Iterator[Row]:
    """Few rows in which each pair of choices stands somewhere: the greedy way, the same in every run."""
    missing = {
        pair
        for a, b in itertools.combinations(CHOICES, 2)
        for pair in itertools.product(((a, x) for x in CHOICES[a]), ((b, y) for y in CHOICES[b]))
    }
    while missing:
        row: Row = dict(min(missing))
        for name, choices in CHOICES.items():
            if name not in row:
                row[name] = max(
                    choices, key=lambda c: sum(p in missing for p in pairs_of(ordered({**row, name: c})))
                )
        row = ordered(row)
        missing -= pairs_of(row)
        yield row


def ordered(row: Row) -> Row:
    return {name: row[name] for name in CHOICES if name in row}


ROWS = list(all_pairs())


def call_of(row: Row, device: str) -> Call:
    options: Choice = {}
    for name, choice in row.items():
        options.update(CHOICES[name][choice])
    if (first := options.get("mrope_section")) is not None:
        options["mrope_section"] = (*first, options.get("rotary_dim", 64) // 2 - sum(first))
        pos = options["pos"]
        options["pos"] = pos if options.get("axes") == 1 else [pos, pos[::-1], sorted(pos)]
    if options.get("slots") is None and options.get("num_kv_rows"):
        options["num_slots"] = 6
    return build(Case(device, **options))


def name_of(row: Row) -> str:
    return f"{ROWS.index(row)}-{row['layout']}-{row['dtype']}-{row['cache']}".replace(" ", "_")


def test_every_pair_of_choices_is_tried() -> None:
    tried = set().union(*(pairs_of(row) for row in ROWS))
    sizes = [len(choices) for choices in CHOICES.values()]
    assert len(tried) == sum(a * b for a, b in itertools.combinations(sizes, 2))
    assert len(ROWS) < 60


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_values(device: str, row: Row) -> None:
    verify(call_of(row, device))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_captured(cuda: str, row: Row) -> None:
    call = call_of(row, cuda)
    verify(call, captured(call))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_no_synchronisation(cuda: str, row: Row) -> None:
    call = call_of(row, cuda)
    call.copy().run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_opcheck(device: str, row: Row) -> None:
    """test_schema compares with allclose, which torch has not for fp8, and takes no call in place."""
    args, keywords = operator_arguments(call_of(row, device))
    tests = ["test_autograd_registration", "test_faketensor"]
    if device == "cuda" or ROWS.index(row) % 3 == 0:  # it takes most of the time
        tests.append("test_aot_dispatch_dynamic")
    takes_schema = row["cache"] in ("own", "bytes") and "fp8" not in row["q_out"]
    if takes_schema and "in place" not in (row["q_out"], row["k_out"]):
        tests.append("test_schema")
    results = torch.library.opcheck(OPERATOR, args, keywords, test_utils=tests)
    assert set(results.values()) == {"SUCCESS"}, results


def is_same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def description(call: Call, results: Any, device_of: Any) -> list[Any]:
    """Each result's shape, dtype, strides, offset, device; arguments and results that have its storage."""
    return [
        (
            tuple(result.shape), result.dtype, result.stride(), result.storage_offset(), device_of(result),
            [name for name, tensor in call.tensors().items() if is_same_storage(tensor, result)],
            [i for i, other in enumerate(results) if is_same_storage(other, result)],
        )
        for result in results
    ]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_results_without_data_are_those_of_the_call(device: str, row: Row) -> None:
    """Fake and meta tensors: count, shapes, dtypes, strides, offsets, device and aliasing."""
    call = call_of(row, device)
    real = description(call, call.run(), lambda tensor: tensor.device)
    with FakeTensorMode() as mode:
        fake_call = converted_call(call, mode.from_tensor)
        fake = description(fake_call, fake_call.run(), lambda tensor: tensor.device)
    assert fake == real
    meta_call = on_meta(call)
    assert description(meta_call, meta_call.run(), lambda tensor: call.device) == real
