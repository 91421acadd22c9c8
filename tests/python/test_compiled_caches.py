"""Calls that share a cache, compiled: none is dropped, none done twice, none moved past another."""

import kvrope
import pytest
import torch

from test_torch_citizen import check_equal_to_eager, fresh_compiler, step_arguments  # noqa: F401  (a fixture)


def call(q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, **options):
    arguments = (q, k, v, key_cache, value_cache, slot_mapping, pos, cos_sin, k_scale, None, True, True)
    return kvrope.fused_qk_rope_reshape_and_cache(*arguments, output_zeros=False, **options)


def calls_in_order(q, k, v, key_cache, value_cache, *rest):
    """Three writes of one slot each; what is read between them is what stood there then."""
    call(q, k, v, key_cache, value_cache, *rest)
    first = value_cache * 1
    call(q, k * 2, v * 2, key_cache, value_cache, *rest)
    second = key_cache[0] + 0
    call(q, k * 3, v * 3, key_cache, value_cache, *rest)
    return first, second, value_cache[0] + 0


def layers_of_one_cache(q, k, v, key_cache, value_cache, *rest):
    """K and V of three layers side by side in one tensor, each layer's input the last one's output."""
    pages = torch.zeros(3, *key_cache.shape[:-1], 128, dtype=key_cache.dtype, device=key_cache.device)
    for layer in range(3):
        rows, *_ = call(q, k, v, pages[layer, ..., :64], pages[layer, ..., 64:], *rest)
        q = rows.view(q.shape) * 0.5
    key_cache.copy_(pages[2, ..., :64])
    return q, pages * 1


def in_place_twice(q, k, v, *rest):
    """A call that is done once more would rotate once more."""
    q, k = q.clone(), k.clone()
    call(q, k, v, *rest, q_out=q, k_out=k)
    call(q, k, v, *rest, q_out=q, k_out=k)
    return q, k


CALLS_OF = {calls_in_order: 3, layers_of_one_cache: 3, in_place_twice: 2}


@pytest.mark.parametrize("function", CALLS_OF, ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_calls_that_share_a_cache(device: str, backend: str, function, fresh_compiler) -> None:  # noqa: F811
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    check_equal_to_eager(function, compiled, step_arguments(device, 5))
    arguments = step_arguments(device, 5, seed=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(*arguments)
    calls = [event for event in profile.events() if event.name.startswith("kvrope::fused_qk_rope")]
    assert len(calls) == CALLS_OF[function]


def test_overlap_is_refused_while_compiling(device: str, fresh_compiler) -> None:  # noqa: F811
    def function(q, k, v, *rest):
        return call(q, k, v, *rest, k_out=v)[:2]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="k_out: expected memory of its own, got elements shared with v"):
        compiled(*step_arguments(device, 5))
