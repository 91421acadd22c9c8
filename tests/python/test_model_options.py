"""Norms and mRoPE sections of tests/shapes/models.json are those of transformers' own modules."""

import kvrope
import pytest
import torch
from rotary_modules import attention_of, model_cases, rotary_of

MODELS = model_cases()
WITH_MROPE = [name for name, case in MODELS.items() if "mrope" in case]


@pytest.mark.parametrize("name", MODELS)
def test_norms(name: str) -> None:
    """A norm of each head is one whose weight has the head's size: OLMo-2 norms all heads as one."""
    case = MODELS[name]
    attention = attention_of(case)
    found = {}
    for part in ("q", "k"):
        norm = getattr(attention, f"{part}_norm", None)
        if norm is None or norm.weight.shape != (case["head_dim"],):
            continue
        norm = norm.to_empty(device="cpu")
        torch.nn.init.zeros_(norm.weight)
        has_plus_one = bool(norm(torch.ones(1, case["head_dim"])).any())
        eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
        found[part] = {"eps": eps, "plus_one": has_plus_one}
    stated = case.get("norm")
    ours = {"eps": 1e-6, "plus_one": False, **(stated or {})}
    assert found == ({} if stated is None else {"q": ours, "k": ours})


def test_there_are_models_with_either() -> None:
    assert sum("norm" in case for case in MODELS.values()) >= 12 and len(WITH_MROPE) >= 3


def axis_of(mrope: dict, frequency: int) -> int:
    time, height, _ = section = mrope["section"]
    if mrope.get("interleaved"):
        axis = frequency % 3
        return axis if axis > 0 and frequency < 3 * section[axis] else 0
    return 0 if frequency < time else 1 if frequency < time + height else 2


@pytest.mark.parametrize("name", WITH_MROPE)
def test_sections(name: str) -> None:
    """Each frequency of the module turns by the axis that the case's section names, bit for bit."""
    case = MODELS[name]
    pairs, tokens = case["head_dim"] // 2, 40
    table = kvrope.build_cos_sin(2 * pairs, 512, case["table"]["base"])
    positions = torch.randint(512, (3, tokens), generator=torch.Generator().manual_seed(0))
    cosines, sines = rotary_of(case)(torch.zeros(1), positions.unsqueeze(1))
    for i in range(pairs):
        rows = table[positions[axis_of(case["mrope"], i)]]
        assert torch.equal(cosines[0, :, i], rows[:, i]), i
        assert torch.equal(sines[0, :, i], rows[:, pairs + i]), i
