"""mRoPE against the modules of transformers that have it: Qwen2-VL, Qwen2.5-VL, Qwen3-VL with its QK-norm."""

from typing import Any

import kvrope
import pytest
import torch
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

from cases import Case, build
from elements import bits_of
from fp8_codes import E4M3, step_index

MODELS: dict[str, tuple[Any, str, type]] = {
    "qwen2_vl": (modeling_qwen2_vl, "Qwen2VL", Qwen2VLTextConfig),
    "qwen2_5_vl": (modeling_qwen2_5_vl, "Qwen2_5_VL", Qwen2_5_VLTextConfig),
    "qwen3_vl": (modeling_qwen3_vl, "Qwen3VLText", Qwen3VLTextConfig),
}
SECTIONS = {"qwen2_vl": [16, 24, 24], "qwen2_5_vl": [16, 24, 24], "qwen3_vl": [24, 20, 20]}
THETA, LIMIT = 1000000.0, 2048


def vision_positions() -> torch.Tensor:
    """(3, T) as the models make them: text, two images of 3 x 4 patches, text; then far places."""
    text = torch.arange(5).expand(3, -1)
    patches = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij"))
    images = patches.flatten(1) + 5
    more_text = (torch.arange(4) + 9).expand(3, -1)
    far = torch.tensor([[900, 2047, 0], [901, 0, 2046], [1000, 64, 1]])
    return torch.cat((text, images, more_text, far), dim=1)


def modules_of(model: str, head_size: int, section: list[int]) -> tuple[Any, Any, Any]:
    """The rotary module, an attention module with random norms where it has any, the rotation."""
    modeling, name, config_type = MODELS[model]
    parameters = dict(rope_type="default", rope_theta=THETA, mrope_section=section)
    if model == "qwen3_vl":
        parameters["mrope_interleaved"] = True
    config = config_type(
        hidden_size=4 * head_size, num_attention_heads=4, num_key_value_heads=2, head_dim=head_size,
        num_hidden_layers=1, max_position_embeddings=LIMIT, rope_parameters=parameters,
    )  # fmt: skip
    torch.manual_seed(7)
    rotary = getattr(modeling, f"{name}RotaryEmbedding")(config)
    attention = getattr(modeling, f"{name}Attention")(config, 0)
    if model == "qwen3_vl":
        with torch.no_grad():
            for norm in (attention.q_norm, attention.k_norm):
                norm.weight.copy_(1 + torch.randn(head_size) / 4)
    return rotary, attention, modeling.apply_rotary_pos_emb


def reference(model: str, head_size: int, section: list[int], dtype: torch.dtype) -> dict[str, Any]:
    """Projections of random hidden states, and what the model makes of them."""
    rotary, attention, apply_rotary_pos_emb = modules_of(model, head_size, section)
    attention, pos = attention.to(dtype), vision_positions()
    hidden = torch.randn(1, pos.shape[1], 4 * head_size).to(dtype)
    shape = (1, pos.shape[1], -1, head_size)
    with torch.no_grad():
        q, k = (projection(hidden).view(shape) for projection in (attention.q_proj, attention.k_proj))
        cos, sin = rotary(hidden, pos.unsqueeze(1))
        normed = (attention.q_norm(q), attention.k_norm(k)) if model == "qwen3_vl" else (q, k)
        rotated = apply_rotary_pos_emb(*(x.transpose(1, 2) for x in normed), cos, sin)
    expected = [x[0].transpose(0, 1) for x in rotated]
    return dict(q=q[0], k=k[0], pos=pos, expected=expected, rotary=rotary, attention=attention)


def arguments_of(device: str, model: str, section: list[int], given: dict[str, Any]) -> dict[str, Any]:
    q, k, pos = given["q"], given["k"], given["pos"]
    table = kvrope.build_cos_sin(q.shape[2], LIMIT, THETA)
    case = Case(
        device, num_tokens=len(q), q_heads=4, kv_heads=2, head_size=q.shape[2], dtype=q.dtype, q=q, k=k,
        pos=pos.tolist(), table=table, table_rows=LIMIT, table_dtype=q.dtype, mrope_section=section,
        mrope_interleaved=model == "qwen3_vl", pos_layout="columns",
    )  # fmt: skip
    arguments = build(case).arguments
    if model == "qwen3_vl":
        attention = given["attention"]
        for part, norm in (("q", attention.q_norm), ("k", attention.k_norm)):
            arguments[f"{part}_weight"] = norm.weight.detach().to(device)
        arguments["eps"] = attention.q_norm.variance_epsilon
    return arguments


def sections_of(model: str, head_size: int) -> list[int]:
    """The model's own at head size 128; elsewhere odd ones that its rule can take."""
    own = {128: SECTIONS[model], 64: [7, 12, 13], 80: [14, 13, 13]}[head_size]
    return own if model != "qwen3_vl" or head_size != 64 else [12, 10, 10]


TOLERANCES = [(torch.float32, 2e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)]


@pytest.mark.parametrize("dtype, tolerance", TOLERANCES, ids=str)
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("model", MODELS)
def test_transformers(device: str, model: str, head_size: int, dtype: torch.dtype, tolerance: float) -> None:
    """To a rounding or two where the module rounds between the steps."""
    section = sections_of(model, head_size)
    given = reference(model, head_size, section, dtype)
    arguments = arguments_of(device, model, section, given)
    q_out, k_out, *_ = kvrope.fused_qk_rope_reshape_and_cache(**arguments)
    other = {**arguments, "mrope_interleaved": model != "qwen3_vl"}
    q_other, k_other, *_ = kvrope.fused_qk_rope_reshape_and_cache(**other)
    got = ((q_out, q_other), (k_out, k_other))
    for (ours, in_other_order), theirs in zip(got, given["expected"], strict=True):
        limits = dict(atol=4 * tolerance * theirs.abs().max().item(), rtol=0)
        torch.testing.assert_close(ours.view(theirs.shape).cpu(), theirs, **limits)
        with pytest.raises(AssertionError):  # the comparison can fail
            torch.testing.assert_close(in_other_order.view(theirs.shape).cpu(), theirs, **limits)


@pytest.mark.parametrize("model", MODELS)
def test_table_is_the_modules(model: str) -> None:
    """A row of build_cos_sin is what the module has at equal axes, to the bit."""
    rotary, _, _ = modules_of(model, 128, SECTIONS[model])
    cos, sin = rotary(torch.zeros(1), torch.arange(LIMIT).expand(3, 1, -1))
    table = kvrope.build_cos_sin(128, LIMIT, THETA)
    assert torch.equal(table, torch.cat((cos[0, :, :64], sin[0, :, :64]), dim=1))


@pytest.mark.parametrize("model", MODELS)
def test_fp8_queries_of_a_model(device: str, model: str) -> None:
    """Norm, mRoPE and codes in one launch: the codes of transformers' result, or ones beside them."""
    section = SECTIONS[model]
    given = reference(model, 128, section, torch.float32)
    arguments = arguments_of(device, model, section, given)
    arguments["q_out"] = torch.zeros(arguments["q"].shape, dtype=torch.float8_e4m3fn, device=device)
    arguments["q_scale"] = torch.tensor([0.05, 0.02], device=device)
    codes = bits_of(kvrope.fused_qk_rope_reshape_and_cache(**arguments)[0]).reshape(given["q"].shape)
    scale = arguments["q_scale"].cpu().repeat_interleave(2)[:, None]
    expected = E4M3.encode((given["expected"][0] * (1 / scale)).double().numpy())
    apart = abs(step_index(codes) - step_index(expected))
    assert apart.max() <= 1 and (apart > 0).mean() < 1e-3
