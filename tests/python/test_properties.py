"""Properties over random input, always against the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from cases import Case, build, verify
from elements import bits_of, element_offsets
from halves import rope_of, write_of
from tensors import blank, buffer

needs_no_device = settings(max_examples=300)


@settings(max_examples=400)
@given(data=st.data())
def test_valid_calls(device: str, data: st.DataObject) -> None:
    verify(data.draw(strategies.cases(device)))


@settings(max_examples=300)
@given(data=st.data())
def test_hostile_slots_and_positions(device: str, data: st.DataObject) -> None:
    """Whatever the integers hold: rows that fit are served, others are faults, nothing else is touched."""
    verify(data.draw(strategies.hostile_calls(device)))


@settings(max_examples=100)
@given(data=st.data(), has_k=st.booleans())
def test_halves(device: str, data: st.DataObject, has_k: bool) -> None:
    """Of valid and of hostile calls: what is no fault in a padding row of the fused call may be one of rope."""
    fused = data.draw(st.one_of(strategies.hostile_calls(device), strategies.cases(device).map(build)))
    verify(rope_of(fused.copy(), has_k))
    verify(write_of(fused))


@settings(max_examples=150)
@given(data=st.data())
def test_any_strides(device: str, data: st.DataObject) -> None:
    """Every tensor in memory of its own order and padding."""
    call = build(
        Case(
            device,
            num_tokens=3,
            q_heads=4,
            head_size=16,
            layout=data.draw(st.sampled_from(["flash", "x_split"])),
        )
    )
    for name in ("q", "k", "v", "cos_sin"):
        call.arguments[name] = data.draw(
            strategies.any_strides(call.arguments[name].cpu(), device), label=name
        )
    for name in ("key_cache", "value_cache"):
        moved = data.draw(strategies.any_strides(call.arguments[name].cpu(), device), label=name)
        call.arguments[name] = moved
    call.arguments["k_out"] = data.draw(
        strategies.any_strides(call.arguments["k"].cpu() * 0, device), label="k_out"
    )
    verify(call)


@settings(max_examples=80)
@given(case=strategies.cases("cpu"), data=st.data())
def test_rows_do_not_depend_on_each_other(case: Case, data: st.DataObject) -> None:
    """The rows of a batch, one call each, give the bits of one call of all."""
    call = build(case)
    together = call.copy()
    results = together.run()
    num_tokens, num_slots = case.num_tokens, call.arguments["slot_mapping"].shape[0]
    apart = call.copy(q_out=None, k_out=None, zeros_out=None)
    for row in range(case.num_kv_rows):
        rows, tokens = slice(row, row + 1), slice(row, row + 1) if row < num_tokens else slice(0, 0)
        one = apart.copy()
        one.arguments.update({name: apart.arguments[name] for name in ("key_cache", "value_cache")})
        one.arguments.update({name: call.arguments[name][rows] for name in ("k", "v")})
        one.arguments.update(q=call.arguments["q"][tokens], pos=call.arguments["pos"][..., tokens])
        if case.q_out_dtype is not None:
            one.arguments["q_out"] = torch.empty(one.arguments["q"].shape, dtype=case.q_out_dtype)
        one.arguments["slot_mapping"] = call.arguments["slot_mapping"][row : min(row + 1, num_slots)]
        if call.arguments["offs"] is not None:
            one.arguments["offs"] = call.arguments["offs"][tokens]
        q_row, k_row = one.run()[:2]
        assert (bits_of(q_row) == bits_of(results[0][tokens])).all()
        assert (bits_of(k_row) == bits_of(results[1][rows])).all()
    for name in ("key_cache", "value_cache"):
        assert (bits_of(apart.arguments[name]) == bits_of(together.arguments[name])).all()


def strided_view(draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    strides = tuple(draw(st.integers(0, 12)) for _ in shape)
    return strides, draw(st.integers(0, 40))


@needs_no_device
@given(data=st.data())
def test_overlap_is_judged_by_elements(data: st.DataObject) -> None:
    """Refused if and only if k_out shares an element with itself, with v or with the value cache."""
    call = build(
        Case(
            num_tokens=2,
            q_heads=2,
            kv_heads=2,
            head_size=4,
            v_head_size=3,
            num_blocks=2,
            block_size=2,
            slots=[0, 3],
        )
    )
    whole = buffer(256, torch.bfloat16, "cpu")
    whole.zero_()
    offsets = {}
    for name in data.draw(
        st.lists(st.sampled_from(["k_out", "v", "value_cache"]), min_size=1, max_size=3, unique=True)
    ):
        like = call.arguments["k"] if name == "k_out" else call.arguments[name]
        strides, offset = strided_view(data.draw, tuple(like.shape))
        view = whole.as_strided(like.shape, strides, offset)
        call.arguments[name] = view
        offsets[name] = element_offsets(view).reshape(-1)
    written = [name for name in offsets if name != "v"]
    folded = [name for name in written if np.unique(offsets[name]).size < offsets[name].size]
    pairs = [(name, other) for name in written for other in offsets if name != other]
    shared = [pair for pair in pairs if np.intersect1d(offsets[pair[0]], offsets[pair[1]]).size]
    if folded or shared:
        with pytest.raises(ValueError, match="k_out|value_cache"):
            call.run()
    else:
        verify(call)


@needs_no_device
@given(data=st.data())
def test_q_out_is_taken_if_and_only_if_it_has_the_view(data: st.DataObject) -> None:
    """q_out is refused exactly when torch cannot view it as (T, QH * D)."""
    num_tokens, heads, head_size = data.draw(st.sampled_from([(2, 2, 4), (3, 1, 4), (1, 2, 4), (2, 3, 2)]))
    call = build(Case(num_tokens=num_tokens, q_heads=heads, kv_heads=1, head_size=head_size))
    order = data.draw(st.permutations(range(3)))
    strides, step = [0] * 3, data.draw(st.integers(1, 2))
    for dim in order:
        strides[dim] = step
        step = step * (num_tokens, heads, head_size)[dim] + data.draw(st.sampled_from([0, 0, 1, 4]))
    call.arguments["q_out"] = q_out = blank((num_tokens, heads, head_size), torch.bfloat16, "cpu", strides)
    try:
        q_out.view(num_tokens, heads * head_size)
    except RuntimeError:
        with pytest.raises(ValueError, match="q_out"):
            call.run()
    else:
        verify(call)
