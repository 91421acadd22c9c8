"""The rotation: styles, tables, head sizes, partial rotary; values against the oracle, some spelled out."""

import kvrope
import numpy as np
import pytest
import torch

from cases import Case, build, verify
from elements import bits_of

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("full_width", [False, True], ids=["half", "full"])
@pytest.mark.parametrize("table_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_styles_tables_and_dtypes(device, dtype, table_dtype, full_width, is_neox) -> None:
    verify(Case(device, dtype=dtype, table_dtype=table_dtype, full_width=full_width, is_neox=is_neox))


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize(
    "head_size", [2, 4, 6, 36, 40, 46, 50, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 510, 512]
)
def test_head_sizes(device: str, head_size: int, is_neox: bool) -> None:
    """Powers of two or not, multiples of a vector or not, half and full tables, all in each size."""
    for full_width in (False, True):
        for dtype in (torch.float16, torch.bfloat16):
            verify(Case(device, head_size=head_size, is_neox=is_neox, full_width=full_width, dtype=dtype))


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("head_size", [40, 80, 96, 112, 192, 256])
def test_head_sizes_x_split(device: str, head_size: int, is_neox: bool) -> None:
    verify(Case(device, head_size=head_size, is_neox=is_neox, layout="x_split", x=8))
    verify(
        Case(device, head_size=head_size, is_neox=is_neox, layout="x_split", x=8, rotary_dim=head_size // 2)
    )


@pytest.mark.parametrize("full_width", [False, True], ids=["half", "full"])
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("rotary_dim, head_size", [(64, 64), (96, 96), (80, 80), (40, 64), (48, 112)])
def test_each_element_takes_its_own_columns(device, rotary_dim, head_size, is_neox, full_width) -> None:
    """Cosine column j holds 1000 + j, sine column j 2000 + j; unit vectors then spell out which was used."""
    columns = rotary_dim if full_width else rotary_dim // 2
    row = torch.cat((1000.0 + torch.arange(columns), 2000.0 + torch.arange(columns)))
    units = torch.eye(head_size).unsqueeze(1)  # token t holds the unit vector of dim t
    case = Case(
        device, num_tokens=head_size, q_heads=1, kv_heads=1, head_size=head_size, dtype=torch.float32,
        q=units, k=units, v=units, table=row.repeat(4, 1), table_rows=4, rotary_dim=rotary_dim,
        is_neox=is_neox, full_width=full_width,
    )  # fmt: skip
    call = verify(case)
    q_out = call.run()[0].cpu()
    for i in range(rotary_dim // 2):
        a, b = (i, i + rotary_dim // 2) if is_neox else (2 * i, 2 * i + 1)
        column_a, column_b = (a, b) if full_width else (i, i)
        expected_a, expected_b = torch.zeros(head_size), torch.zeros(head_size)
        expected_a[a], expected_a[b] = 1000 + column_a, 2000 + column_b  # b' = b cos + a sin
        expected_b[b], expected_b[a] = 1000 + column_b, -(2000 + column_a)  # a' = a cos - b sin
        assert torch.equal(q_out[a], expected_a), (a, b)
        assert torch.equal(q_out[b], expected_b), (a, b)
    assert torch.equal(q_out[rotary_dim:], units[rotary_dim:, 0])


def test_style_flag_is_obeyed(device: str) -> None:
    """A unit vector in dim 1 spreads to dim 1 + D/2 in NeoX style and to dim 0 in GPT-J style."""
    q = torch.zeros(1, 8, 64)
    q[:, :, 1] = 1
    for is_neox, dims in ((True, [1, 33]), (False, [0, 1])):
        call = verify(Case(device, num_tokens=1, q=q, pos=[7], is_neox=is_neox, dtype=torch.float32))
        q_out = call.run()[0].view(8, 64).cpu()
        assert torch.nonzero(q_out[0]).flatten().tolist() == dims


def test_direction_of_the_rotation(device: str) -> None:
    """A positive angle turns the first axis of a pair towards the second: (1, 0) becomes (cos, sin)."""
    angle = torch.tensor(0.5)
    table = torch.stack((angle.cos(), angle.sin())).reshape(1, 2)
    q = torch.tensor([1.0, 0.0]).repeat(1, 8, 1)
    call = verify(
        Case(device, num_tokens=1, head_size=2, q=q, pos=[0], table=table, table_rows=1, dtype=torch.float32)
    )
    assert torch.equal(call.run()[0].view(8, 2)[0].cpu(), table[0])


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("full_width", [False, True], ids=["half", "full"])
@pytest.mark.parametrize(
    "rotary_dim, offset",
    [
        (2, 0),
        (2, 126),
        (64, 0),
        (64, 64),
        (64, 1),
        (64, 31),
        (32, 96),
        (48, 16),
        (126, 1),
        (126, 2),
        (30, 7),
        (128, 0),
    ],
)
def test_partial_rotary(device: str, rotary_dim: int, offset: int, full_width: bool, is_neox: bool) -> None:
    """The rotated part at any offset, odd ones too; verify() wants the other dims bit-identical."""
    verify(
        Case(
            device,
            head_size=128,
            rotary_dim=rotary_dim,
            rotary_dim_offset=offset,
            is_neox=is_neox,
            full_width=full_width,
        )  # fmt: skip
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dims_outside_the_rotated_part_keep_their_bits(device: str, dtype: torch.dtype) -> None:
    """Also NaN with a payload, infinities, subnormals and negative zero."""
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-45, -1e-40, 6e-8, 3.0e38, 65504.0])
    rows = special.repeat(5, 8, 8)[:, :, :64].to(dtype)
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    payload = {torch.float16: 0x7E01, torch.bfloat16: 0x7FA1, torch.float32: 0x7FA00001}[dtype]
    rows.view(bits)[..., 0] = payload
    case = Case(
        device, q=rows, k=rows[:, :2], v=rows[:, :2], dtype=dtype, rotary_dim=32, rotary_dim_offset=20
    )
    verify(case)


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_last_table_row_is_the_last_read(device: str, table_dtype, head_size: int, is_neox: bool) -> None:
    """The row behind the table's last one is NaN, and so are the gaps between rows in the second call."""
    case = dict(
        table_rows=64,
        pos=[63] * 5,
        table_dtype=table_dtype,
        head_size=head_size,
        is_neox=is_neox,
        full_width=False,
    )
    verify(Case(device, **case))
    verify(Case(device, **case, table_padding=head_size))


@pytest.mark.parametrize("table_padding", [0, 1, 3, 8, 64])
@pytest.mark.parametrize("table_offset", [64, 65, 66])
def test_table_row_stride_and_alignment(device: str, table_padding: int, table_offset: int) -> None:
    for table_dtype in (torch.float32, torch.float16):
        for full_width in (False, True):
            verify(
                Case(
                    device,
                    table_padding=table_padding,
                    table_offset=table_offset,
                    table_dtype=table_dtype,
                    full_width=full_width,
                )  # fmt: skip
            )


def test_table_column_stride(device: str) -> None:
    call = build(Case(device))
    table = call.arguments["cos_sin"]
    wide = torch.full((table.shape[0], 2 * table.shape[1]), torch.nan, device=device)
    wide[:, ::2] = table
    call.arguments["cos_sin"] = wide[:, ::2]
    verify(call)
    call.arguments["cos_sin"] = table.t().contiguous().t()
    verify(call)


def test_table_of_one_repeated_row(device: str) -> None:
    call = build(Case(device))
    call.arguments["cos_sin"] = call.arguments["cos_sin"][3:4].expand(256, -1)
    verify(call)


@pytest.mark.parametrize(
    "q_heads, kv_heads", [(1, 1), (8, 8), (8, 2), (8, 1), (7, 1), (9, 3), (128, 1), (40, 40)]
)
def test_head_counts(device: str, q_heads: int, kv_heads: int) -> None:
    verify(Case(device, q_heads=q_heads, kv_heads=kv_heads))


@pytest.mark.parametrize("v_head_size", [1, 2, 33, 48, 128, 511, 512])
@pytest.mark.parametrize("layout", ["flash", "packed_heads", "x_split", "shuffled"])
def test_value_head_size_of_its_own(device: str, layout: str, v_head_size: int) -> None:
    verify(Case(device, v_head_size=v_head_size, layout=layout))


def test_extreme_values(device: str) -> None:
    """Infinities and NaN go where exact arithmetic sends them; nothing else in the row changes."""
    q = torch.randn(5, 8, 64)
    q[0, 0, 0], q[1, 1, 1], q[2, 2, 33], q[3, 3, 63] = torch.nan, torch.inf, -torch.inf, 3.0e38
    for dtype in DTYPES:
        verify(Case(device, q=q.to(dtype), k=q[:, :2].to(dtype), dtype=dtype))


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of fp32 arrays, rounded once: in float64 the product is exact, the sum rounded to odd."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    is_even = (total.view(np.int64) & 1) == 0
    towards = np.where((error > 0) == (total > 0), 1, -1)
    odd = (total.view(np.int64) + towards).view(np.float64)
    return np.where((error != 0) & is_even, odd, total).astype(np.float32)


@pytest.mark.parametrize(
    "dtype, subnormal", [(torch.float16, 3e-5), (torch.bfloat16, 1e-39), (torch.float32, 1e-39)], ids=str
)
def test_subnormals_where_the_caller_flushes_them(dtype: torch.dtype, subnormal: float) -> None:
    """torch.set_flush_denormal tells the calling thread alone: rows that other threads serve must not differ."""
    q = torch.full((4096, 8, 64), subnormal, dtype=dtype)
    cos_sin = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], dim=1)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes no subnormals")
    try:
        rotated, _ = kvrope.rope(q, None, torch.zeros(4096, dtype=torch.int64), cos_sin, True)
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(bits_of(rotated), bits_of(q))


@pytest.mark.parametrize("strides", ["contiguous", "odd_offset", "dim_stride_2"])
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_order_of_roundings(device: str, is_neox: bool, strides: str) -> None:
    """a' = fma(a, cos, -(b sin)), b' = fma(b, cos, a sin): the same bits on every device, in every path."""
    case = Case(device, num_tokens=64, dtype=torch.float32, is_neox=is_neox, strides=strides)
    call = build(case)
    q, table = call.arguments["q"].cpu().numpy(), call.arguments["cos_sin"].cpu().numpy()
    angles = table[call.arguments["pos"].cpu().numpy()][:, None, :]
    cos, sin = angles[..., :32], angles[..., 32:]
    a, b = (q[..., :32], q[..., 32:]) if is_neox else (q[..., ::2], q[..., 1::2])
    first, second = fma(a, cos, -(b * sin)), fma(b, cos, a * sin)
    expected = (
        np.concatenate((first, second), -1) if is_neox else np.stack((first, second), -1).reshape(q.shape)
    )
    q_out = call.run()[0].view(q.shape)
    assert np.array_equal(bits_of(q_out), expected.view(np.uint32))
