"""QK-norm: RMSNorm of the heads of q, of k or of both before the rotation, alone and with all else."""

from typing import Any

import kvrope
import pytest
import torch
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from cases import Case, build, verify
from elements import bits_of
from halves import rope_call, rope_of, run_halves
from tensors import LAYOUTS

FP8 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
NORMS = ["q", "k", "qk"]

CALLS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "one row": dict(num_tokens=1),
    "no rows": dict(num_tokens=0, num_kv_rows=3),
    "kv only rows": dict(num_kv_rows=9, num_slots=8),  # they are not normed
    "gptj": dict(is_neox=False, full_width=True),
    "partial": dict(rotary_dim=32, rotary_dim_offset=7, is_neox=False),
    "partial and aligned": dict(rotary_dim=32, rotary_dim_offset=8, num_tokens=140),
    "in place": dict(q_out="in_place", k_out="in_place", strides="fused_qkv"),
    "extremes": dict(extremes=True, num_tokens=40),
    "fp8": dict(cache_dtype=FP8, k_scale=[0.3, 3.0], v_scale=0.7),
    "padding": dict(slots=[3, -1, 20, -5, 127], pos=[1, 999, 2, 0, 5], zeros_out="contiguous"),
    "window and offsets": dict(swa=list(range(127, -1, -1)), offs=[3, -1, 0, 2, -9], pos=[9, 1, 30, 2, 9]),
    "odd values": dict(v_head_size=47, num_tokens=300, layout="x_split"),
    "many rows": dict(num_tokens=300),
    "more rows": dict(num_tokens=2100, q_heads=2, kv_heads=1),
    "one slot": dict(slots=[5, 9, 5, 5, 9], layout="x_split"),
}  # fmt: skip
ONE_SLOT = ("one slot",)  # the contract leaves open which row stays, so the oracle does not say


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("what", [what for what in CALLS if what not in ONE_SLOT])
def test_calls(device: str, what: str, norm: str) -> None:
    for plus_one in (False, True):
        options = dict(weight_plus_one=plus_one, weight_dtype=torch.float32 if plus_one else None)
        verify(Case(device, norm=norm, **options, **CALLS[what]))


@pytest.mark.parametrize("head_size", [2, 4, 6, 40, 46, 80, 96, 126, 128, 192, 256, 320, 510, 512])
def test_head_sizes(device: str, head_size: int) -> None:
    """Sums within a warp and over several, threads without a part of a head, few rows and many."""
    for dtype in (torch.bfloat16, torch.float32):
        for num_tokens in (3, 140):
            sizes = dict(head_size=head_size, num_tokens=num_tokens, q_heads=2)
            verify(Case(device, norm="qk", dtype=dtype, **sizes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(device: str, dtype: torch.dtype, layout: str) -> None:
    verify(Case(device, norm="qk", layout=layout, dtype=dtype, num_tokens=20, eps=0.01))
    verify(Case(device, norm="k", layout=layout, dtype=dtype, cache_dtype=FP8, k_scale=0.5))


@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=str)
def test_weights_anywhere_in_memory(device: str, weight_dtype: torch.dtype | None) -> None:
    for offset in (1, 2, 4, 8):
        verify(Case(device, norm="qk", weight_dtype=weight_dtype, weight_offset=64 + offset))
    verify(Case(device, norm="qk", weight_dtype=weight_dtype, weight_stride=3))


@pytest.mark.parametrize("has_k", [True, False], ids=["q_and_k", "q"])
@pytest.mark.parametrize("norm", NORMS)
def test_rope(device: str, norm: str, has_k: bool) -> None:
    for options in (dict(), dict(num_tokens=300, rotary_dim=32), dict(num_kv_rows=7, weight_plus_one=True)):
        verify(rope_call(Case(device, norm=norm, **options), has_k))


def test_one_weight_for_both(device: str) -> None:
    call = build(Case(device, norm="q"))
    call.arguments["k_weight"] = call.arguments["q_weight"]
    verify(call)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (bits_of(a).reshape(-1) == bits_of(b).reshape(-1)).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("what", [what for what in CALLS if what not in (*ONE_SLOT, "padding")])
def test_match_unfused(device: str, what: str, norm: str) -> None:
    """rope with the weights, then reshape_and_cache, give the bits of the fused call."""
    for dtype in DTYPES:
        fused = build(Case(device, norm=norm, **{"dtype": dtype, "k_scale": 0.3, **CALLS[what]}))
        halves = fused.copy()
        expected = fused.run(lambda **a: kvrope.fused_qk_rope_reshape_and_cache(**a, match_unfused=True))
        for got, want in zip(run_halves(halves), expected, strict=False):
            assert same_bits(got, want), dtype


@pytest.mark.parametrize("what", CALLS)
def test_same_bits_as_the_cpu(cuda: str, what: str) -> None:
    for norm in NORMS:
        for dtype in DTYPES:
            fused = build(Case(cuda, norm=norm, dtype=dtype, **CALLS[what]))
            # What is padding in the fused call would be a position out of range.
            for call in [fused] if what == "padding" else [rope_of(fused.copy()), fused]:
                on_cpu = call.copy(device="cpu")
                results = zip(call.run(), on_cpu.run(), strict=True)
                assert all(same_bits(got, want) for got, want in results), (norm, dtype)


def test_rows_of_zeros(device: str) -> None:
    """eps keeps them zero; without it they are NaN, as 0 / 0 is."""
    zeros = torch.zeros(5, 8, 64)
    assert not verify(Case(device, norm="q", q=zeros)).run()[0].any()
    call = build(Case(device, norm="q", q=zeros, eps=0.0))
    assert call.run()[0].isnan().all()


def test_under_torch_compile(device: str) -> None:
    call = build(Case(device, norm="qk", weight_plus_one=True))
    expected = call.copy().run()
    compiled = torch.compile(kvrope.fused_qk_rope_reshape_and_cache, fullgraph=True)
    for got, want in zip(call.run(compiled), expected, strict=True):
        assert same_bits(got, want)


# --- transformers' modules on random weights

POSITIONS = [0, 1, 2, 3, 900, 901, 64, 2000, 2047]


def attention_of(model: str, head_size: int) -> tuple[Any, Any, Any]:
    """An attention module with random norms, cosines and sines of 2048 positions, the rotation."""
    sizes = dict(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=head_size, num_hidden_layers=1,
        max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(7)
    positions, x = torch.arange(2048).unsqueeze(0), torch.zeros(1)
    if model == "qwen3":
        config = Qwen3Config(**sizes)
        module, modeling = modeling_qwen3.Qwen3Attention(config, 0), modeling_qwen3
        table = modeling_qwen3.Qwen3RotaryEmbedding(config)(x, positions)
    else:
        config = Gemma3TextConfig(**sizes, layer_types=["full_attention"])
        module, modeling = modeling_gemma3.Gemma3Attention(config, 0), modeling_gemma3
        table = modeling_gemma3.Gemma3RotaryEmbedding(config)(x, positions, layer_type="full_attention")
    with torch.no_grad():
        for norm in (module.q_norm, module.k_norm):
            norm.weight.copy_(torch.randn(head_size) / 4 + (model == "qwen3"))
    return module, table, modeling.apply_rotary_pos_emb


TOLERANCES = [(torch.float32, 2e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)]


@pytest.mark.parametrize("dtype, tolerance", TOLERANCES)
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("model", ["qwen3", "gemma3"])
def test_transformers(device: str, model: str, head_size: int, dtype: torch.dtype, tolerance: float) -> None:
    """To a rounding or two where the module rounds between norm and rotation. The weights' forms differ."""
    module, (cos, sin), apply_rotary_pos_emb = attention_of(model, head_size)
    module = module.to(dtype)
    hidden = torch.randn(1, len(POSITIONS), 64).to(dtype)
    with torch.no_grad():
        shape = (1, len(POSITIONS), -1, head_size)
        q, k = (projection(hidden).view(shape) for projection in (module.q_proj, module.k_proj))
        normed = [norm(x).transpose(1, 2) for norm, x in ((module.q_norm, q), (module.k_norm, k))]
        expected = apply_rotary_pos_emb(*normed, cos[:, POSITIONS].to(dtype), sin[:, POSITIONS].to(dtype))
    half = head_size // 2
    cos_sin = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)
    case = Case(
        device, num_tokens=len(POSITIONS), q_heads=4, kv_heads=2, head_size=head_size, dtype=dtype, q=q[0],
        k=k[0], pos=POSITIONS, table=cos_sin, table_rows=2048, table_dtype=dtype,
    )  # fmt: skip
    arguments = build(case).arguments
    weights = {f"{part}_weight": getattr(module, f"{part}_norm").weight.detach().to(device) for part in "qk"}
    options = dict(eps=module.q_norm.eps if model == "gemma3" else module.q_norm.variance_epsilon)
    options["weight_plus_one"] = model == "gemma3"
    q_out, k_out, *_ = kvrope.fused_qk_rope_reshape_and_cache(**arguments, **weights, **options)
    rotated = kvrope.rope(
        *(arguments[name] for name in ("q", "k", "pos", "cos_sin", "is_neox")), **weights, **options
    )
    for ours, alone, theirs in zip((q_out.view(q[0].shape), k_out), rotated, expected, strict=True):
        theirs = theirs[0].transpose(0, 1)
        assert same_bits(ours, alone)
        largest = theirs.float().abs().max().item()
        torch.testing.assert_close(ours.cpu(), theirs, atol=4 * tolerance * largest, rtol=0)
        with pytest.raises(AssertionError):  # the comparison can fail
            torch.testing.assert_close(ours.cpu() * 1.1, theirs, atol=4 * tolerance * largest, rtol=0)
