"""The reference models of transformers: Llama (NeoX style), GPT-NeoX (partial), GPT-J (interleaved)."""

import kvrope
import pytest
import torch
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.llama.configuration_llama import LlamaConfig

from cases import Case, build

ATOL = 1e-3  # fp16
REQUESTS = [(0, 7), (901, 5), (64, 1), (2000, 12)]  # start and length of each: a continuous batch
POSITIONS = [start + i for start, length in REQUESTS for i in range(length)]


def half_rows(heads: int, head_size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(len(POSITIONS), heads, head_size, generator=generator) - 0.5).half()


def call_kvrope(
    device: str, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, is_neox: bool, rotary_dim=None
):
    """(T, heads, D) rotated q and k, and K as it stands in the cache."""
    num_tokens, q_heads, head_size = q.shape
    call = build(
        Case(
            device,
            num_tokens=num_tokens,
            q_heads=q_heads,
            kv_heads=k.shape[1],
            head_size=head_size,
            dtype=q.dtype,
            q=q,
            k=k,
            is_neox=is_neox,
            rotary_dim=rotary_dim,
            pos=POSITIONS,
            table=cos_sin,
            table_rows=len(cos_sin),
            slots=range(num_tokens),
        )  # fmt: skip
    )
    q_out, k_out, key_cache, _ = kvrope.fused_qk_rope_reshape_and_cache(**call.arguments)
    cached = key_cache.flatten(0, 1)[:num_tokens]
    assert torch.equal(cached, k_out)
    return q_out.view(q.shape).cpu(), k_out.cpu()


def llama_cos_sin(head_size: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, P, D) tables of transformers' own module, for every position."""
    config = LlamaConfig(
        hidden_size=head_size * 4, num_attention_heads=4, head_dim=head_size, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    embedding = modeling_llama.LlamaRotaryEmbedding(config)
    return embedding(torch.zeros(1), torch.arange(4096).unsqueeze(0))


@pytest.mark.parametrize("head_size, theta", [(64, 10000.0), (128, 500000.0), (96, 10000.0)])
@pytest.mark.parametrize("full_width", [False, True], ids=["half", "full"])
def test_llama(device: str, full_width: bool, head_size: int, theta: float) -> None:
    cos, sin = llama_cos_sin(head_size, theta)
    q, k = half_rows(8, head_size, 1), half_rows(2, head_size, 2)
    as_heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k)]  # (1, H, T, D)
    picked = [table[:, POSITIONS].half() for table in (cos, sin)]
    expected = modeling_llama.apply_rotary_pos_emb(*as_heads_first, *picked)
    width = head_size if full_width else head_size // 2
    cos_sin = torch.cat((cos[0, :, :width], sin[0, :, :width]), dim=-1)
    got = call_kvrope(device, q, k, cos_sin, is_neox=True)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), atol=ATOL, rtol=0)


def test_llama_in_fp32(device: str) -> None:
    """The same with fp32 throughout, where nothing hides in the rounding."""
    cos, sin = llama_cos_sin(128, 10000.0)
    q, k = half_rows(8, 128, 1).float(), half_rows(2, 128, 2).float()
    as_heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k)]
    expected = modeling_llama.apply_rotary_pos_emb(*as_heads_first, cos[:, POSITIONS], sin[:, POSITIONS])
    got = call_kvrope(device, q, k, torch.cat((cos[0, :, :64], sin[0, :, :64]), dim=-1), is_neox=True)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("head_size, rotary_dim", [(64, 16), (96, 24), (128, 32)])
def test_gpt_neox_partial(device: str, head_size: int, rotary_dim: int) -> None:
    """A quarter of each head is rotated, the first one; the rest equals the input."""
    cos, sin = llama_cos_sin(rotary_dim, 10000.0)
    q, k = half_rows(4, head_size, 3), half_rows(4, head_size, 4)
    as_heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k)]
    picked = [table[:, POSITIONS].half() for table in (cos, sin)]
    expected = modeling_gpt_neox.apply_rotary_pos_emb(*as_heads_first, *picked)
    half = rotary_dim // 2
    cos_sin = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)
    got = call_kvrope(device, q, k, cos_sin, is_neox=True, rotary_dim=rotary_dim)
    for ours, theirs, given in zip(got, expected, (q, k), strict=True):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), atol=ATOL, rtol=0)
        assert torch.equal(ours[..., rotary_dim:], given[..., rotary_dim:])


@pytest.mark.parametrize("head_size, rotary_dim", [(64, 64), (256, 64), (128, 32)])
def test_gptj(device: str, head_size: int, rotary_dim: int) -> None:
    """Pairs (2i, 2i + 1), as rotate_every_two has them; GPT-J itself rotates 64 of 256 dims."""
    sin_cos = modeling_gptj.create_sinusoidal_positions(4096, rotary_dim)
    sin, cos = sin_cos.chunk(2, dim=-1)
    q, k = half_rows(4, head_size, 5), half_rows(4, head_size, 6)
    expected = []
    for x in (q, k):
        part = x[None, ..., :rotary_dim]  # (1, T, H, R)
        rotated = modeling_gptj.apply_rotary_pos_emb(
            part, sin[None, POSITIONS].half(), cos[None, POSITIONS].half()
        )
        expected.append(torch.cat((rotated[0], x[..., rotary_dim:]), dim=-1))
    got = call_kvrope(device, q, k, torch.cat((cos, sin), dim=-1), is_neox=False, rotary_dim=rotary_dim)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=ATOL, rtol=0)


def test_styles_differ(device: str) -> None:
    """The comparison can fail: GPT-J's result is not Llama's."""
    cos, sin = llama_cos_sin(64, 10000.0)
    q, k = half_rows(8, 64, 1), half_rows(2, 64, 2)
    cos_sin = torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=-1)
    neox, gptj = (call_kvrope(device, q, k, cos_sin, is_neox=is_neox)[0] for is_neox in (True, False))
    assert (neox - gptj).abs().max() > 100 * ATOL
