"""Cache layouts: every shape, block size, x and page; logical content against the oracle."""

import pytest
import torch

from cases import Case, build, verify
from elements import bits_at, cache_offsets, storage_bytes
from tensors import GUARD, LAYOUTS, buffer

SPLIT = ["x_split", "shuffled"]
CACHE_DTYPES = [torch.float8_e4m3fn, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 2, 16, 24, 48, 256, 784])
def test_block_sizes(device: str, block_size: int, layout: str) -> None:
    """Powers of two or not. A shuffled cache takes an x that divides the block."""
    x = next(x for x in (8, 4, 2, 1) if block_size % x == 0)
    verify(Case(device, layout=layout, block_size=block_size, num_blocks=max(5, 40 // block_size), x=x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("fp8", [False, True], ids=["own", "fp8"])
def test_cache_dtypes(device: str, fp8: bool, dtype: torch.dtype, layout: str) -> None:
    cache_dtype = torch.float8_e4m3fn if fp8 else dtype
    verify(Case(device, layout=layout, dtype=dtype, cache_dtype=cache_dtype))


@pytest.mark.parametrize("layout", SPLIT)
@pytest.mark.parametrize("x", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=str)
def test_x(device: str, cache_dtype: torch.dtype, x: int, layout: str) -> None:
    dtype = torch.float32 if cache_dtype == torch.float32 else torch.bfloat16
    for is_neox in (True, False):
        verify(
            Case(
                device,
                layout=layout,
                dtype=dtype,
                cache_dtype=cache_dtype,
                x=x,
                block_size=64,
                num_blocks=3,
                head_size=192,
                is_neox=is_neox,
                rotary_dim=64,
                rotary_dim_offset=32,
            )  # fmt: skip
        )


@pytest.mark.parametrize("layout", SPLIT)
@pytest.mark.parametrize(
    "head_size, x", [(512, 8), (512, 512), (40, 8), (36, 4), (46, 2), (50, 1), (50, 2), (2, 2)]
)
def test_x_that_is_not_the_vector(device: str, head_size: int, x: int, layout: str) -> None:
    """x wider than a vector, narrower, and head sizes that are no multiple of one."""
    verify(Case(device, layout=layout, head_size=head_size, x=x, block_size=512, num_blocks=2))


def test_x_smaller_than_half_a_vector_with_padded_values(device: str) -> None:
    verify(Case(device, layout="x_split", x=2, v_head_size=7, page_padding=3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_padding", [1, 8, 64, 1000])
def test_page_padding(device: str, page_padding: int, layout: str) -> None:
    """The padding between blocks stays as it is; an odd one breaks the alignment of every other block."""
    for cache_dtype in (torch.bfloat16, torch.float8_e4m3fn):
        verify(Case(device, layout=layout, page_padding=page_padding, cache_dtype=cache_dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cache_of_one_layer_among_others(device: str, layout: str) -> None:
    """Blocks of a model with four layers lie side by side; ours are every fourth."""
    call = build(Case(device, layout=layout, num_blocks=32))
    for name in ("key_cache", "value_cache"):
        call.arguments[name] = call.arguments[name][2::4]
    verify(call)


@pytest.mark.parametrize("key_layout", ["flash", "hnd", "packed_pages", "packed_heads"])
@pytest.mark.parametrize("value_layout", ["flash", "hnd", "packed_pages", "packed_heads"])
def test_key_and_value_caches_have_strides_of_their_own(
    device: str, key_layout: str, value_layout: str
) -> None:
    call = build(Case(device, layout=key_layout))
    other = build(Case(device, layout=value_layout, page_padding=16))
    call.arguments["value_cache"] = other.arguments["value_cache"]
    verify(call)


def test_split_caches_with_permuted_memory(device: str) -> None:
    """An x-split shape over any memory: here blocks innermost, so that no row of the cache is contiguous."""
    call = build(Case(device, layout="x_split", num_blocks=8))
    for name in ("key_cache", "value_cache"):
        cache = call.arguments[name]
        turned = torch.full(cache.shape[::-1], 0x5A, dtype=torch.uint8, device=device).to(cache.dtype)
        call.arguments[name] = turned.permute(*reversed(range(cache.dim())))
    verify(call)


def test_flash_cache_with_dims_outermost(device: str) -> None:
    call = build(Case(device))
    for name in ("key_cache", "value_cache"):
        cache = call.arguments[name]
        turned = torch.zeros(cache.shape[::-1], dtype=cache.dtype, device=device)
        call.arguments[name] = turned.permute(3, 2, 1, 0)
    verify(call)


def test_layouts_store_the_same_bits(device: str) -> None:
    """One logical content in every layout."""
    contents = []
    for layout in LAYOUTS:
        call = verify(
            Case(device, layout=layout, cache_dtype=torch.float8_e4m3fn, k_scale=0.3, v_scale=0.7, x=16)
        )
        slots = call.arguments["slot_mapping"].tolist()
        content = []
        for name in ("key_cache", "value_cache"):
            cache = call.arguments[name]
            offsets = cache_offsets(cache, name == "key_cache", call.arguments["flash_layout"], slots)
            content.append(bits_at(storage_bytes(cache), 1, offsets))
        contents.append(content)
    for key, value in contents[1:]:
        assert (key == contents[0][0]).all() and (value == contents[0][1]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_block(device: str, layout: str) -> None:
    verify(Case(device, layout=layout, num_blocks=1, block_size=8, slots=[0, 7, 3, -1, 2]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_blocks(device: str, layout: str) -> None:
    """A cache without blocks has no slot that fits: padding works, anything else is a fault."""
    for slots in ([-1] * 5, [-1, -1, 0, -1, -1]):
        call = build(Case(device, layout=layout, num_blocks=2, slots=slots))
        for name in ("key_cache", "value_cache"):
            call.arguments[name] = call.arguments[name][:0]
        verify(call)


def test_cache_offsets_beyond_32_bits(device: str) -> None:
    """Two pages 2^31 elements apart, K and V in each; memory that is not touched is never committed."""
    page, half = 2**31, 16 * 2 * 64
    whole = torch.empty(page + 2 * half + GUARD, dtype=torch.uint8, device=device)
    whole[-2 * half - GUARD :] = 0x5A
    call = build(Case(device, slots=[31, 16, 0, 20, -1], num_blocks=2))
    shape, strides = (2, 16, 2, 64), (page, 128, 64, 1)
    caches = [whole.as_strided(shape, strides, offset).view(torch.float8_e4m3fn) for offset in (0, half)]
    small = build(Case(device, slots=[31, 16, 0, 20, -1], num_blocks=2, cache_dtype=torch.float8_e4m3fn))
    call.arguments.update(key_cache=caches[0], value_cache=caches[1])
    call.run()
    verify(small)
    for cache, name in zip(caches, ("key_cache", "value_cache"), strict=True):
        expected = small.arguments[name].view(torch.uint8)
        got = cache.view(torch.uint8)
        for block, offset in ((1, 15), (1, 0), (0, 0), (1, 4)):
            assert torch.equal(got[block, offset], expected[block, offset])
        untouched = [offset for offset in range(1, 15) if offset != 4]
        assert (got[1, untouched] == 0x5A).all()
    assert (whole[-GUARD:] == 0x5A).all()


def test_row_offsets_beyond_32_bits(device: str) -> None:
    """Rows of q, k and v 2^30 elements apart in one buffer: 2^31 bytes, and twice that for the third row."""
    stride = 2**30 + 2**29
    whole = torch.empty(2 * stride + 12 * 64, dtype=torch.bfloat16, device=device)
    call = build(Case(device, num_tokens=3))
    small = call.copy()
    offset = 0
    for name, heads in (("q", 8), ("k", 2), ("v", 2)):
        view = whole.as_strided((3, heads, 64), (stride, 64, 1), offset)
        view.copy_(call.arguments[name])
        call.arguments[name] = view
        offset += heads * 64
    results, expected = call.run(), verify(small).run()
    for result, want in zip(results, expected, strict=True):
        assert torch.equal(result, want)


def test_buffer_helper_is_filled() -> None:
    assert (buffer(3, torch.bfloat16, "cpu").view(torch.uint8) == 0x5A).all()
