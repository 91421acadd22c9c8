"""Arguments that do not fit, one for each way not to: what the message names, and which error it is."""

import math
from dataclasses import dataclass
from typing import Any, Callable

import torch


@dataclass
class Bad:
    name: str
    argument: str  # that the message names
    error: type[Exception]
    fits: str  # regular expression found in the message
    change: Callable[[dict[str, Any]], Any]  # of a good call's arguments: a dict of replacements
    layout: str = "flash"


def blank_like(
    arguments: dict[str, Any], name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> Any:
    like = arguments[name] if arguments[name] is not None else arguments["q"]
    return torch.zeros(shape, dtype=dtype or like.dtype, device=like.device)


def shape(
    argument: str, size: tuple[int, ...], fits: str, layout: str = "flash", named: str | None = None
) -> Bad:
    return Bad(
        f"{argument}{list(size)}-{layout}", named or argument, ValueError, fits,
        lambda a: {argument: blank_like(a, argument, size)}, layout,
    )  # fmt: skip


def index(argument: str, size: tuple[int, ...], fits: str) -> Bad:
    return Bad(
        f"{argument}{list(size)}", argument, ValueError, fits,
        lambda a: {argument: torch.zeros(size, dtype=torch.int64, device=a["q"].device)},
    )  # fmt: skip


def dtype(argument: str, wrong: torch.dtype, fits: str, layout: str = "flash") -> Bad:
    def change(a: dict[str, Any]) -> dict[str, Any]:
        like = a[argument] if a[argument] is not None else a["pos"]
        return {argument: torch.zeros(like.shape, dtype=torch.uint8, device=like.device).to(wrong)}

    return Bad(f"{argument}-{wrong}", argument, TypeError, fits, change, layout)


def option(
    argument: str, fits: str, named: str | None = None, error: type[Exception] = ValueError, **values: Any
) -> Bad:
    return Bad(
        "-".join(f"{k}={v}" for k, v in values.items()), named or argument, error, fits, lambda a: values
    )


def heads(q_heads: int, kv_heads: int, argument: str, fits: str) -> Bad:
    def change(a: dict[str, Any]) -> dict[str, Any]:
        q, k = blank_like(a, "q", (5, q_heads, 64)), blank_like(a, "k", (5, kv_heads, 64))
        cache = blank_like(a, "key_cache", (8, 16, kv_heads, 64))
        return dict(q=q, k=k, v=k.clone(), key_cache=cache, value_cache=cache.clone())

    return Bad(f"heads-{q_heads}-{kv_heads}", argument, ValueError, fits, change)


def head_size(size: int) -> Bad:
    def change(a: dict[str, Any]) -> dict[str, Any]:
        q, k = blank_like(a, "q", (5, 8, size)), blank_like(a, "k", (5, 2, size))
        cache = blank_like(a, "key_cache", (8, 16, 2, size))
        table = blank_like(a, "cos_sin", (256, size))
        return dict(q=q, k=k, v=k.clone(), key_cache=cache, value_cache=cache.clone(), cos_sin=table)

    return Bad(f"head_size-{size}", "q", ValueError, r"even head size.*512", change)


INTEGERS = r"int32.*int64|int64.*int32"
TABLE = r"float32.*float16.*bfloat16"
ROWS = [
    shape("q", (5, 512), r"\(T, QH, D\)"),
    shape("q", (1, 5, 8, 64), r"\(T, QH, D\)"),
    shape("k", (5, 2, 32), r"D=64|64\)"),
    shape("k", (5, 128), r"\(Tk, KH, D"),
    shape("k", (4, 2, 64), r"at least|>= 5"),
    shape("v", (6, 2, 64), r"5"),
    shape("v", (5, 3, 64), r"KH=2|2"),
    shape("v", (5, 2, 514), r"512|64"),
    shape("v", (5, 2, 0), r"1 to 512|64"),
    heads(7, 2, "k", r"divides|multiple"),
    heads(2, 8, "k", r"divides|multiple"),
    heads(0, 2, "q", r"1 to|at least"),
    heads(8, 0, "k", r"1 to|at least"),
    head_size(63),
    head_size(1),
    head_size(0),
    head_size(514),
]
CACHES = [
    shape("key_cache", (8, 16, 128), r"num_blocks, block_size"),
    shape("key_cache", (8, 16, 2, 32), r"64"),
    shape("key_cache", (8, 16, 4, 64), r"KH=2|2"),
    shape("key_cache", (8, 0, 2, 64), r"block_size of at least 1"),
    shape("key_cache", (8, 2, 8, 16, 8), r"num_blocks, block_size"),
    shape("value_cache", (8, 8, 2, 64), r"16"),
    shape("value_cache", (7, 16, 2, 64), r"8"),
    shape("value_cache", (8, 16, 2, 32), r"64"),
    shape("value_cache", (8, 16, 1, 64), r"2"),
    shape("key_cache", (8, 16, 2, 64), r"num_blocks, KH=2, D/x, block_size, x", "x_split"),
    shape("key_cache", (8, 2, 7, 16, 8), r"power of two", "x_split"),
    shape("key_cache", (8, 2, 16, 16, 3), r"power of two", "x_split"),
    shape("key_cache", (8, 2, 1, 16, 128), r"power of two", "x_split"),
    shape("key_cache", (8, 2, 8, 0, 8), r"block_size of at least 1", "x_split"),
    shape("value_cache", (8, 2, 64, 15), r"16", "x_split"),
    shape("value_cache", (8, 2, 63, 16), r"64", "x_split"),
    shape("value_cache", (8, 2, 4, 64, 4), r"8", "shuffled"),
    shape("value_cache", (8, 2, 2, 64), r"16", "shuffled"),
    shape("value_cache", (8, 2, 1, 64, 8), r"2", "shuffled"),
]
INDICES = [
    index("slot_mapping", (6,), r"at most.* 5|<= 5"),
    index("slot_mapping", (5, 1), r"\(T_slot"),
    index("slot_mapping", (), r"\(T_slot"),
    *(index("pos", size, r"\(T=5,?\)|\(5,\)") for size in [(3, 5), (5, 1), (1, 5), (4,), (6,), ()]),
    *(index("offs", size, r"\(T=5,?\)|\(5,\)") for size in [(3, 5), (5, 1), (4,), (6,), ()]),
    index("swa_slot_mapping", (4, 4), r"\(N"),
    index("swa_slot_mapping", (), r"\(N"),
    *(
        dtype(argument, wrong, INTEGERS)
        for argument in ("slot_mapping", "pos", "offs", "swa_slot_mapping")
        for wrong in (torch.int16, torch.uint8, torch.float32, torch.bool)
    ),
]
ROTATION = [
    shape("cos_sin", (64,), r"\(P, W\)"),
    shape("cos_sin", (256, 1, 64), r"\(P, W\)"),
    *(shape("cos_sin", (256, width), r"64 or 128.*head size") for width in (0, 32, 65, 96, 192)),
    dtype("cos_sin", torch.float64, TABLE),
    dtype("cos_sin", torch.int32, TABLE),
    option("rotary_dim", r"width 32 or 64", "cos_sin", rotary_dim=32, cos_sin_width=128),
    *(option("rotary_dim", r"even.* 2 to.* 64", rotary_dim=value) for value in (0, -2, 31, 66, 2**40)),
    *(
        option("rotary_dim_offset", r"0 to", rotary_dim=64, rotary_dim_offset=value)
        for value in (-1, 1, 2**40)
    ),
    option("rotary_dim_offset", r"0 to 32", rotary_dim=32, rotary_dim_offset=33, cos_sin_width=32),
]
DTYPES = [
    dtype("q", torch.float64, r"float16.*bfloat16.*float32"),
    dtype("q", torch.int32, r"float16.*bfloat16.*float32"),
    dtype("k", torch.float16, r"bfloat16"),
    dtype("v", torch.float32, r"bfloat16"),
    *(
        dtype("key_cache", wrong, r"bfloat16.*float8_e4m3fn.*float8_e5m2")
        for wrong in (torch.float16, torch.float32, torch.int8, torch.float8_e4m3fnuz, torch.uint8)
    ),
    dtype("value_cache", torch.float8_e4m3fn, r"bfloat16"),
    option("kv_cache_dtype", r"auto.*fp8_e4m3.*fp8_e5m2", kv_cache_dtype="int8"),
    option("kv_cache_dtype", r"auto.*fp8_e4m3.*fp8_e5m2", kv_cache_dtype=""),
    option("kv_cache_dtype", r"float8_e4m3fn.*uint8", "key_cache", TypeError, kv_cache_dtype="fp8"),
    option("kv_cache_dtype", r"float8_e5m2.*uint8", "key_cache", TypeError, kv_cache_dtype="fp8_e5m2"),
]


def scale(name: str, make: Callable[[str], Any], error: type[Exception], fits: str) -> list[Bad]:
    return [
        Bad(f"{argument}-{name}", argument, error, fits, lambda a, n=argument: {n: make(a["q"].device)})
        for argument in ("k_scale", "v_scale")
    ]


FORMS = r"\(\), \(1,\) or \(KH=2,?\)"
SCALES = [
    *scale("1x1", lambda device: torch.ones(1, 1, device=device), ValueError, FORMS),
    *scale("3", lambda device: torch.ones(3, device=device), ValueError, FORMS),
    *scale("0", lambda device: torch.ones(0, device=device), ValueError, FORMS),
    *scale("per-q-head", lambda device: torch.ones(8, device=device), ValueError, FORMS),
    *scale("fp64", lambda device: torch.ones((), dtype=torch.float64, device=device), TypeError, "float32"),
    *scale("fp16", lambda device: torch.ones(1, dtype=torch.float16, device=device), TypeError, "float32"),
    *scale("int", lambda device: torch.ones((), dtype=torch.int32, device=device), TypeError, "float32"),
]
OUTPUTS = [
    shape("q_out", (5, 512), r"\(T=5, QH=8, D=64\)|\(5, 8, 64\)"),
    shape("q_out", (6, 8, 64), r"5"),
    shape("q_out", (5, 1, 64), r"8"),
    shape("k_out", (5, 2, 32), r"64"),
    shape("k_out", (4, 2, 64), r"5"),
    shape("zeros_out", (5, 2, 64), r"8"),
    shape("zeros_out", (5, 8, 64, 1), r"8"),
    *(
        Bad(f"{name}-dtype", name, TypeError, "bfloat16", lambda a, n=name, s=source: {n: a[s].float()})
        for name, source in (("q_out", "q"), ("k_out", "k"), ("zeros_out", "q"))
    ),
    *(
        Bad(f"q_out-{name}", "q_out", ValueError, r"view.*\(T, QH \* D\)", change)
        for name, change in {
            "transposed": lambda a: {"q_out": blank_like(a, "q", (8, 5, 64)).transpose(0, 1)},
            "padded": lambda a: {"q_out": blank_like(a, "q", (5, 8, 80))[..., :64]},
        }.items()
    ),
]  # fmt: skip


def weight(argument: str, size: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Callable[..., Any]:
    return lambda a: {argument: torch.ones(size, dtype=dtype, device=a["q"].device)}


NORMS = [
    *(
        Bad(f"{name}{list(size)}", name, ValueError, r"D=64", weight(name, size))
        for name in ("q_weight", "k_weight") for size in ((63,), (65,), (1,), (), (1, 64), (8, 64))
    ),
    *(
        Bad(f"{name}-{wrong}", name, TypeError, "bfloat16 or float32", weight(name, (64,), wrong))
        for name in ("q_weight", "k_weight") for wrong in (torch.float16, torch.float64, torch.int64)
    ),
    *(
        Bad(f"eps-{eps}", "eps", ValueError, r"finite number of at least 0", lambda a, e=eps: {
            **weight("k_weight", (64,))(a), "eps": e})
        for eps in (-1e-6, math.inf, -math.inf, math.nan, 1e39)
    ),
    option("eps", r"finite number of at least 0", eps=-1.0),
    Bad(
        "plus-one", "weight_plus_one", ValueError, "neither q_weight nor k_weight",
        lambda a: {"weight_plus_one": True},
    ),
]  # fmt: skip


def section(fits: str, *sizes: int, **options: Any) -> Bad:
    return option("mrope_section", fits, mrope_section=list(sizes), **options)


def axes(*size: int, dtype: torch.dtype = torch.int64) -> Callable[..., Any]:
    return lambda a: dict(pos=torch.zeros(size, dtype=dtype, device=a["q"].device), mrope_section=[7, 12, 13])


THREE = r"three sizes of at least 0 .*32, got"
MROPE = [
    *(
        Bad(f"pos{list(size)}-section", "pos", ValueError, r"3, T=5\)", axes(*size))
        for size in ((2, 5), (4, 5), (5, 3), (3, 4), (3, 6), (1, 5), (0, 5))
    ),
    *(
        Bad(f"pos{list(size)}-section", "pos", ValueError, r"T=5", axes(*size)) for size in ((4,), (3,))
    ),
    *(
        Bad(f"pos{list(size)}-section", "pos", ValueError, r"\(T=5,\) or \(axes=3, T=5\), got", axes(*size))
        for size in ((3, 5, 1), (1, 3, 5), ())
    ),
    *(
        Bad(f"axes-{wrong}", "pos", TypeError, INTEGERS, axes(3, 5, dtype=wrong))
        for wrong in (torch.int16, torch.uint8, torch.float32, torch.bool)
    ),
    *(
        section(THREE, *sizes) for sizes in (
            (), (32,), (16, 16), (8, 8, 8, 8), (16, 8, 7), (16, 8, 9), (0, 0, 0), (-1, 17, 16), (33, -1, 0),
            (2**63 - 1, 2**63 - 1, 34), (2**62, 2**62, 2**63 - 1), (-(2**63), 2**63 - 1, 33),
        )
    ),
    section(r"three sizes .*16, got", 7, 12, 13, rotary_dim=32, cos_sin_width=32),
    section(THREE, 16, 8, 7, mrope_interleaved=True),
    option("mrope_interleaved", r"False.*no mrope_section", mrope_interleaved=True),
]  # fmt: skip


def fp8_queries(dtype: torch.dtype = torch.float8_e4m3fn, q_scale: Any = None) -> Callable[..., Any]:
    return lambda a: dict(
        q_out=torch.zeros_like(a["q"], dtype=torch.uint8).to(dtype),
        q_scale=None if q_scale is None else q_scale.to(a["q"].device),
    )


def query_scale(name: str, scale: torch.Tensor, error: type[Exception], fits: str) -> Bad:
    return Bad(f"q_scale-{name}", "q_scale", error, fits, fp8_queries(q_scale=scale))


QUERIES = [
    query_scale("1x1", torch.ones(1, 1), ValueError, FORMS),
    query_scale("3", torch.ones(3), ValueError, FORMS),
    query_scale("0", torch.ones(0), ValueError, FORMS),
    query_scale("per-q-head", torch.ones(8), ValueError, FORMS),
    query_scale("fp64", torch.ones((), dtype=torch.float64), TypeError, "float32"),
    query_scale("fp16", torch.ones(1, dtype=torch.float16), TypeError, "float32"),
    query_scale("int", torch.ones((), dtype=torch.int32), TypeError, "float32"),
    *(
        Bad(f"q_out-{wrong}", "q_out", TypeError, r"bfloat16.*float8_e4m3fn.*float8_e5m2", fp8_queries(wrong))
        for wrong in (torch.uint8, torch.int8, torch.float16, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    ),
    *(
        Bad(f"{name}-fp8", name, TypeError, "bfloat16",
            lambda a, n=name, s=source: {n: torch.zeros_like(a[s], dtype=torch.float8_e4m3fn)})
        for name, source in (("k_out", "k"), ("zeros_out", "q"))
    ),
    Bad("q_out-fp8-shape", "q_out", ValueError, r"T=5, QH=8, D=64",
        lambda a: {"q_out": torch.zeros(5, 512, device=a["q"].device).to(torch.float8_e5m2)}),
    Bad("q_out-fp8-padded", "q_out", ValueError, r"view.*\(T, QH \* D\)",
        lambda a: {"q_out": torch.zeros(5, 8, 80, device=a["q"].device).to(torch.float8_e5m2)[..., :64]}),
    *(
        Bad(f"q_scale-{name}", "q_scale", ValueError, "none.*q_out is bfloat16", lambda a, m=make: {
            "q_out": m(a), "q_scale": torch.ones((), device=a["q"].device)})
        for name, make in {
            "without-q_out": lambda a: None, "own-q_out": lambda a: torch.zeros_like(a["q"]),
            "in-place": lambda a: a["q"],
        }.items()
    ),
]  # fmt: skip
BAD = ROWS + CACHES + INDICES + ROTATION + DTYPES + SCALES + OUTPUTS + NORMS + MROPE + QUERIES
