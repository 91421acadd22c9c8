"""Batches past the limits of a launch axis, heads at their largest, and what a real layer looks like."""

import pytest
import torch

from cases import Case, verify


@pytest.mark.parametrize("num_tokens", [65535, 65536, 65537, 131073])
def test_many_tokens(device: str, num_tokens: int) -> None:
    """Every row is written, the last slot too; the slots run backwards."""
    verify(
        Case(
            device,
            num_tokens=num_tokens,
            q_heads=1,
            kv_heads=1,
            head_size=16,
            slots=range(num_tokens - 1, -1, -1),
            block_size=64,
            num_blocks=-(-num_tokens // 64),
            q_out="contiguous",
        )  # fmt: skip
    )


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
@pytest.mark.parametrize("num_tokens", [256, 257, 300])
def test_more_rows_than_a_decode_step(device: str, num_tokens: int, layout: str, in_place: bool) -> None:
    """On both sides of the size at which the launch changes its shape."""
    out = "in_place" if in_place else "contiguous"
    verify(Case(device, num_tokens=num_tokens, layout=layout, num_blocks=24, q_out=out, k_out=out))


@pytest.mark.parametrize("layout", ["flash", "x_split"])
def test_one_token_of_many_heads(device: str, layout: str) -> None:
    verify(
        Case(
            device, num_tokens=1, q_heads=128, kv_heads=128, head_size=512, layout=layout, q_out="contiguous"
        )
    )


def test_many_heads(device: str) -> None:
    verify(Case(device, num_tokens=2, q_heads=1024, kv_heads=1, head_size=64))


@pytest.mark.parametrize(
    "q_heads, kv_heads, head_size, rotary_dim, is_neox",
    [(32, 8, 128, None, True), (64, 8, 128, None, True), (16, 16, 256, 64, False), (8, 1, 256, None, True),
     (32, 32, 80, 20, True), (64, 8, 64, None, True), (96, 8, 128, 64, False)],
    ids=["llama", "llama-70b", "gpt-j", "gemma", "pythia", "gpt-oss", "glm"],
)  # fmt: skip
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_model_shapes(device: str, fp8: bool, q_heads, kv_heads, head_size, rotary_dim, is_neox) -> None:
    verify(
        Case(
            device,
            num_tokens=33,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            rotary_dim=rotary_dim,
            is_neox=is_neox,
            cache_dtype=torch.float8_e4m3fn if fp8 else None,
            k_scale=0.05,
            v_scale=0.1,
            layout="x_split" if fp8 else "flash",
            strides="fused_qkv",
            table_rows=4096,
        )  # fmt: skip
    )
