"""The same bits again and again, in place too, and for a row whatever the batch round it."""

from typing import Any

import pytest
import torch

from cases import Case, build, verify
from elements import bits_of

CALLS: dict[str, dict[str, Any]] = {
    "flash": dict(),
    "fp8": dict(cache_dtype=torch.float8_e4m3fn, k_scale=0.3, v_scale=[2.0, 0.7]),
    "x_split": dict(layout="x_split", is_neox=False),
    "shuffled": dict(layout="shuffled", cache_dtype=torch.float8_e5m2, v_scale=0.7),
    "partial": dict(rotary_dim=16, rotary_dim_offset=7, strides="odd_offset"),
}
# Both sides of the sizes at which a launch changes its shape.
SIZES = [1, 2, 64, 128, 129, 256, 257, 2047, 2048, 2100]
CACHES = ("key_cache", "value_cache")


def integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(integers(a), integers(b))


@pytest.mark.parametrize("num_tokens", [5, 257, 2100])
@pytest.mark.parametrize("what", CALLS)
def test_100_repeats(device: str, what: str, num_tokens: int) -> None:
    num_tokens = num_tokens if device == "cuda" else min(num_tokens, 600)
    call = build(Case(device, num_tokens=num_tokens, q_heads=4, head_size=32, **CALLS[what]))
    verify(call.copy())
    first = call.copy()
    expected = [result.clone() for result in first.run()]
    for _ in range(100):
        results = call.run()
        assert all(is_same(got, want) for got, want in zip(results, expected, strict=True))


@pytest.mark.parametrize("what", CALLS)
def test_row_does_not_depend_on_its_batch(device: str, what: str) -> None:
    """Rows of batches of any size are those of calls of one row, caches included."""
    largest = max(SIZES)
    call = build(Case(device, num_tokens=largest, q_heads=4, head_size=32, **CALLS[what]))
    names = ("q", "k", "v", "pos", "slot_mapping")
    for size in SIZES:
        batch = call.copy()
        batch.arguments.update({name: batch.arguments[name][:size] for name in names})
        together = batch.run()
        rows = sorted({0, size // 3, size // 2, size - 1})
        alone = call.copy()
        given = dict(alone.arguments)
        for row in rows:
            alone.arguments.update({name: given[name][row : row + 1] for name in names})
            q_out, k_out, *_ = alone.run()
            assert is_same(q_out, together[0][row : row + 1]), (size, row)
            assert is_same(k_out, together[1][row : row + 1]), (size, row)
        # What the batch cached in those rows' slots, written over what was cached alone, changes nothing.
        alone.arguments.update({name: given[name][rows] for name in names})
        for name in CACHES:
            alone.arguments[name] = batch.arguments[name].clone()
        before = [alone.arguments[name].clone() for name in CACHES]
        for row in rows:
            alone.arguments.update({name: given[name][row : row + 1] for name in names})
            alone.run()
        for name, cache in zip(CACHES, before, strict=True):
            assert is_same(alone.arguments[name], cache), (size, name)


@pytest.mark.parametrize("strides", ["contiguous", "fused_qkv"])
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_in_place_100_times(device: str, is_neox: bool, strides: str) -> None:
    """T = 4096: both elements of a pair are read before either is written."""
    head_size = 64 if device == "cuda" else 16
    case = dict(
        num_tokens=4096, q_heads=4, head_size=head_size, strides=strides, is_neox=is_neox, num_blocks=260
    )
    apart = build(Case(device, **case)).run()
    call = build(Case(device, q_out="in_place", k_out="in_place", **case))
    q, k = call.arguments["q"], call.arguments["k"]
    before = q.clone(), k.clone()
    for _ in range(100):
        q.copy_(before[0])
        k.copy_(before[1])
        call.run()
        assert is_same(q.reshape(4096, -1), apart[0]) and is_same(k.contiguous(), apart[1])
    for got, want in zip((call.arguments[name] for name in CACHES), apart[2:], strict=True):
        assert (bits_of(got) == bits_of(want)).all()
