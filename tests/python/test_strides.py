"""Strides and alignment: each tensor has its own, and every path gives the same bits."""

import itertools

import pytest
import torch

from cases import Case, build, verify
from elements import bits_of
from tensors import ROW_STRIDES

VIEWABLE = ["contiguous", "odd_offset", "eight_bytes", "dim_stride_2"]  # as (T, QH * D)


@pytest.mark.parametrize("strides", [*ROW_STRIDES, "fused_qkv"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_input_strides(device: str, is_neox: bool, dtype: torch.dtype, strides: str) -> None:
    """Bit-equal to the same call on contiguous tensors."""
    case = dict(dtype=dtype, is_neox=is_neox, cache_dtype=torch.float8_e4m3fn, k_scale=0.5)
    strided = verify(Case(device, strides=strides, **case))
    contiguous = verify(Case(device, **case))
    for result, expected in zip(strided.run(), contiguous.run(), strict=True):
        assert (bits_of(result) == bits_of(expected)).all()


@pytest.mark.parametrize("strides", list(itertools.permutations(["contiguous", "odd_padded", "transposed"])))
def test_strides_of_k_are_not_those_of_q(device: str, strides: tuple[str, ...]) -> None:
    verify(Case(device, strides=strides))
    verify(Case(device, strides=strides, rotary_dim=32))


@pytest.mark.parametrize("q_heads, kv_heads", [(2, 2), (8, 2), (8, 1), (7, 1)])
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_fused_qkv_buffer(device: str, num_tokens: int, q_heads: int, kv_heads: int) -> None:
    """Rows of 1 + QH D + KH D + KH Dv + 3 elements: odd offsets, pad columns that must survive."""
    case = Case(device, num_tokens=num_tokens, q_heads=q_heads, kv_heads=kv_heads, strides="fused_qkv")
    verify(case)
    verify(Case(device, num_tokens=num_tokens, q_heads=q_heads, kv_heads=kv_heads, strides="fused_qkv",
                q_out="in_place", k_out="in_place"))  # fmt: skip


def test_no_cross_wiring(device: str) -> None:
    """At angle 0 each output is its input: q = 1, k = 2, v = 3 everywhere."""
    values = [torch.full((6, heads, 64), value) for heads, value in ((8, 1.0), (2, 2.0), (2, 3.0))]
    table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
    for strides in ("contiguous", "fused_qkv", "transposed"):
        case = Case(
            device, num_tokens=6, q=values[0], k=values[1], v=values[2], pos=[0] * 6, table=table,
            table_rows=1, slots=[0, 1, 2, 3, 4, 5], strides=strides,
        )  # fmt: skip
        q_out, k_out, key_cache, value_cache = verify(case).run()
        assert (q_out == 1).all() and (k_out == 2).all()
        assert (key_cache[0, :6] == 2).all() and (value_cache[0, :6] == 3).all()


@pytest.mark.parametrize("q_out", VIEWABLE)
@pytest.mark.parametrize("k_out", ROW_STRIDES)
def test_output_strides(device: str, k_out: str, q_out: str) -> None:
    verify(Case(device, q_out=q_out, k_out=k_out, zeros_out=k_out))


@pytest.mark.parametrize("head_size", [36, 46, 50, 64])
@pytest.mark.parametrize("layout", ["flash", "packed_heads", "x_split", "shuffled"])
@pytest.mark.parametrize("cache_offset", [64, 65, 66, 67, 68])
def test_cache_alignment(device: str, cache_offset: int, layout: str, head_size: int) -> None:
    """Bases at 2, 4, 8 bytes in bf16 and at any byte in fp8; row pitches of 92 bytes; odd block strides."""
    for cache_dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for page_padding in (0, 1):
            verify(
                Case(
                    device,
                    head_size=head_size,
                    layout=layout,
                    x=2,
                    cache_offset=cache_offset,
                    cache_dtype=cache_dtype,
                    page_padding=page_padding,
                )  # fmt: skip
            )


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("kind", ["odd_offset", "eight_bytes", "odd_padded"])
def test_one_misaligned_input(device: str, kind: str, which: int) -> None:
    strides = ["contiguous"] * 3
    strides[which] = kind
    for rotary_dim, offset in ((None, 0), (32, 0), (32, 3), (6, 2)):
        verify(Case(device, strides=strides, rotary_dim=rotary_dim, rotary_dim_offset=offset))


@pytest.mark.parametrize("output", ["q_out", "k_out", "zeros_out"])
def test_one_misaligned_output(device: str, output: str) -> None:
    for is_neox in (True, False):
        verify(Case(device, is_neox=is_neox, **{output: "odd_offset"}))


def test_paths_give_the_same_bits(device: str) -> None:
    """The same values through the widest vectors and through single elements."""
    for dtype, is_neox, full_width in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (True, False), (True, False)
    ):
        case = dict(
            dtype=dtype, is_neox=is_neox, full_width=full_width, num_tokens=64, head_size=128,
            cache_dtype=torch.float8_e5m2, k_scale=0.37, v_scale=1.7,
        )  # fmt: skip
        fast = verify(Case(device, **case))
        slow = verify(Case(device, strides="odd_offset", table_offset=65, cache_offset=65, **case))
        for result, expected in zip(slow.run(), fast.run(), strict=True):
            assert (bits_of(result) == bits_of(expected)).all()


def restrided(tensor: torch.Tensor, **strides: int) -> torch.Tensor:
    """The same memory with other strides for dimensions of size 1."""
    new = list(tensor.stride())
    for dim, stride in strides.items():
        assert tensor.shape[int(dim[3:])] == 1
        new[int(dim[3:])] = stride
    return tensor.as_strided(tensor.shape, new, tensor.storage_offset())


@pytest.mark.parametrize("stride", [0, 1, 3, 4608, 2**40])
@pytest.mark.parametrize("layout", ["flash", "x_split", "shuffled"])
def test_strides_of_dimensions_of_size_one(device: str, layout: str, stride: int) -> None:
    """They mean nothing, whether small, zero, odd or far beyond the buffer."""
    call = build(
        Case(device, num_tokens=1, q_heads=1, kv_heads=1, layout=layout, num_blocks=1, q_out="contiguous",
             k_out="contiguous", zeros_out="contiguous", table_rows=1, slots=[3])
    )  # fmt: skip
    arguments = call.arguments
    for name in ("q", "k", "v", "q_out", "k_out", "zeros_out"):
        arguments[name] = restrided(arguments[name], dim0=stride, dim1=stride)
    head = 2 if layout == "flash" else 1
    for name in ("key_cache", "value_cache"):
        arguments[name] = restrided(arguments[name], dim0=stride, **{f"dim{head}": stride})
    for name in ("pos", "slot_mapping", "cos_sin"):
        arguments[name] = restrided(arguments[name], dim0=stride)
    verify(call)


def test_one_token_of_a_wide_row(device: str) -> None:
    """T = 1 with a token stride of 4608 and KH = 1 with a head stride of 1."""
    call = build(Case(device, num_tokens=1, kv_heads=1))
    arguments = call.arguments
    arguments["q"] = restrided(arguments["q"], dim0=4608)
    arguments["key_cache"] = restrided(arguments["key_cache"], dim2=1)
    arguments["value_cache"] = restrided(arguments["value_cache"], dim2=1)
    verify(call)


def test_last_dimension_of_size_one(device: str) -> None:
    """Dv = 1 with any last stride."""
    call = build(Case(device, v_head_size=1))
    call.arguments["v"] = restrided(call.arguments["v"], dim2=5)
    call.arguments["value_cache"] = restrided(call.arguments["value_cache"], dim3=7)
    verify(call)


def test_inputs_may_share_memory(device: str) -> None:
    """One row for all tokens, one head for all heads, v that is k, offs that is pos."""
    call = build(Case(device))
    arguments = call.arguments
    arguments["q"] = arguments["q"][:1].expand(5, -1, -1)
    arguments["k"] = arguments["k"][:, :1].expand(-1, 2, -1)
    arguments["v"] = arguments["k"]
    arguments["pos"] = torch.full((5,), 7, device=device)
    arguments["offs"] = arguments["pos"]
    verify(call)


def test_no_sticky_error_after_misaligned_calls(device: str) -> None:
    verify(Case(device, strides="odd_offset", cache_offset=65, head_size=46))
    assert torch.ones(8, device=device).sum().item() == 8
