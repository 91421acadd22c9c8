"""The implementations that are measured beside each other.

A peer is made once, which raises Absent where it cannot run here. `bind` gives the call for one set of tensors,
or raises Unsupported for a case that the peer has no call for.
"""

import importlib.util
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import torch

from .peer import Absent, Bound, Peer, load_module, require
from .peer_call import Call
from .torch_peers import Compiled, Eager


def _positional(call: Call) -> Tuple:
    return (
        call.q,
        call.k,
        call.v,
        call.key_cache,
        call.value_cache,
        call.slots,
        call.positions,
        call.table,
        call.k_scale,
        call.v_scale,
        call.is_neox,
        call.is_flash,
        True,
        None,
        call.q_out,
        call.k_out,
        False,
    )


def _options(call: Call) -> Dict[str, object]:
    """Keywords of kvrope's functions that rotate, where they are not the defaults."""
    options: Dict[str, object] = {}
    if call.rotary_dim != call.head_dim:
        options["rotary_dim"] = call.rotary_dim
    if call.q_scale is not None:
        options["q_scale"] = call.q_scale
    if call.mrope_section is not None:
        options.update(mrope_section=call.mrope_section, mrope_interleaved=call.mrope_interleaved)
    if call.is_normed:
        options.update(q_weight=call.q_weight, k_weight=call.k_weight)
        options.update(eps=call.eps, weight_plus_one=call.weight_plus_one)
    return options


def require_plain(call: Call) -> None:
    """For what has no norms, no axes of positions and no fp8 queries."""
    require(not call.is_normed, "norms of q and k")
    require(call.mrope_section is None, "positions of three axes (mRoPE)")
    require(call.q_out_dtype == call.dtype and call.q_scale is None, "fp8 queries")


class Kvrope(Peer):
    name, has_pdl = "kvrope", True

    def __init__(self) -> None:
        self._function = load_module("kvrope").fused_qk_rope_reshape_and_cache

    def bind(self, call: Call) -> Bound:
        arguments, options = _positional(call), _options(call)
        return lambda: self._function(*arguments, **options)


class KvropeHalves(Peer):
    """Its rotation, then its cache write: two launches, with a k_out between them that is read again."""

    name, has_pdl = "kvrope rope + cache", True

    def __init__(self) -> None:
        module = load_module("kvrope")
        self._rope, self._write = module.rope, module.reshape_and_cache

    def bind(self, call: Call) -> Bound:
        rotation = (call.q, call.k, call.positions, call.table, call.is_neox)
        options = {"q_out": call.q_out, "k_out": call.k_out, **_options(call)}
        caches = (call.key_cache, call.value_cache)
        write = (call.k_out, call.v, *caches, call.slots, call.k_scale, call.v_scale, call.is_flash)

        def run() -> None:
            self._rope(*rotation, **options)
            self._write(*write)

        return run


class SameSignature(Peer):
    """A function of the same name and positional arguments."""

    def __init__(self, name: str, function: Callable):
        self.name, self._function = name, function

    def bind(self, call: Call) -> Bound:
        require_plain(call)
        require(call.rotary_dim == call.head_dim, "rotary_dim")
        arguments = _positional(call)
        return lambda: self._function(*arguments)


def load_file(name: str, path: Optional[str]) -> Peer:
    """The function of that name in a Python file."""
    if path is None or not Path(path).is_file():
        raise Absent("no --seed-kernel is given" if path is None else f"{path} is no file")
    spec = importlib.util.spec_from_file_location(f"{name.replace(' ', '_')}_kernel", path)
    if spec is None:
        raise Absent(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return SameSignature(name, module.fused_qk_rope_reshape_and_cache)
    except Exception as error:
        raise Absent(f"{path}: {type(error).__name__}: {error}".splitlines()[0]) from error


def aiter_kernel() -> Peer:
    if importlib.util.find_spec("aiter") is None:
        raise Absent("aiter is not installed")
    try:
        module = load_module("aiter.ops.triton.fusions.fused_kv_cache")
    except Absent:  # where earlier versions have it
        module = load_module("aiter.ops.triton.fused_kv_cache")
    return SameSignature("aiter", module.fused_qk_rope_reshape_and_cache)


def sglang_folder() -> Path:
    """Of the package, which is not imported: that would need much of what it depends on."""
    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        raise Absent("sglang is not installed")
    return Path(list(package.submodule_search_locations)[0]) / "kernels"


def sglang_triton_kernel() -> Peer:
    return load_file(
        "sglang triton", str(sglang_folder() / "ops/attention/fused_qk_rope_reshape_and_cache.py")
    )


class Sglang(Peer):
    """SGLang's fused CUDA kernel, compiled from the sources in its package."""

    name, has_pdl, in_place = "sglang", True, True

    def __init__(self) -> None:
        self._root = sglang_folder() / "jit"
        if not (self._root / "csrc" / "elementwise" / "rope.cuh").is_file():
            raise Absent("this sglang has no kernels/jit/csrc/elementwise/rope.cuh")
        self._ffi = load_module("tvm_ffi.cpp")
        if not torch.cuda.is_available():
            raise Absent("there is no CUDA device to compile it for")
        self._modules: Dict[Tuple, object] = {}

    def _module(self, is_neox: bool, head_dim: int, dtype: torch.dtype) -> object:
        key = (is_neox, head_dim, dtype)
        if key not in self._modules:
            element = {torch.bfloat16: "bf16_t", torch.float16: "fp16_t"}[dtype]
            template = f"{str(is_neox).lower()}, {head_dim}, true, {element}, {element}"  # true: with PDL
            source = (
                f'#include "{self._root}/csrc/elementwise/rope.cuh"\n#include <tvm/ffi/function.h>\n'
                "namespace sglang {\n"
                "TVM_FFI_DLL_EXPORT_TYPED_FUNC("
                f"run_rope_store, (FusedRopeKernel<{template}>::run_fused));\n}}\n"
            )
            major, minor = torch.cuda.get_device_capability()
            flags = [
                "-std=c++20",
                "-O3",
                "--expt-relaxed-constexpr",
                f"-DSGL_CUDA_ARCH={100 * major + 10 * minor}",
            ]
            self._modules[key] = self._ffi.load_inline(
                f"sglang_rope_{element}_{head_dim}_{'neox' if is_neox else 'gptj'}",
                cuda_sources=source,
                extra_cuda_cflags=flags,
                extra_include_paths=[str(self._root / "include")],
            )
        return self._modules[key]

    def bind(self, call: Call) -> Bound:
        require_plain(call)
        require(call.layout == "flash_nhd", "layout")
        require(not call.is_fp8 and call.k_scale is None and call.v_scale is None, "an fp8 cache or scales")
        require(
            call.rotary_dim == call.head_dim and call.head_dim & (call.head_dim - 1) == 0, "the head size"
        )
        require(call.slots.dtype == call.positions.dtype, "slots and positions of two dtypes")
        run = self._module(call.is_neox, call.head_dim, call.dtype).run_rope_store
        caches = [
            cache.view(-1, call.kv_heads * call.head_dim) for cache in (call.key_cache, call.value_cache)
        ]
        arguments = (call.q, call.k, call.v, *caches, call.table, call.positions, call.slots)
        return lambda: run(*arguments)


class Flashinfer(Peer):
    """Its rotation, then its append to a paged cache: two launches."""

    name, in_place = "flashinfer", True

    def __init__(self) -> None:
        module = load_module("flashinfer")
        self._rope, self._append = module.apply_rope_with_cos_sin_cache_inplace, module.append_paged_kv_cache

    def bind(self, call: Call) -> Bound:
        require_plain(call)
        require(call.layout in ("flash_nhd", "packed_kv"), "layout")
        require(not call.is_fp8 and call.k_scale is None and call.v_scale is None, "an fp8 cache or scales")
        q, k = call.q.flatten(1), call.k.flatten(1)
        blocks = torch.arange(call.num_blocks + 1, dtype=torch.int32, device=call.device)
        # Every block is a request of one page: a row's request is its block, its position the offset in it.
        request, offset = (call.slots // call.block_size).int(), (call.slots % call.block_size).int()
        full = torch.full((call.num_blocks,), call.block_size, dtype=torch.int32, device=call.device)

        def run() -> None:
            self._rope(call.positions, q, k, call.head_dim, call.table, call.is_neox)
            self._append(
                call.k, call.v, request, offset, (call.key_cache, call.value_cache), blocks[:-1], blocks, full
            )

        return run


class Vllm(Peer):
    """Its rotation, then its cache write: two launches. The table is of q's dtype."""

    name, in_place, loose = "vllm", True, True

    def __init__(self) -> None:
        self._ops = load_module("vllm._custom_ops")

    def bind(self, call: Call) -> Bound:
        require_plain(call)
        require(call.layout in ("flash_nhd", "flash_hnd", "packed_kv", "x_split"), "layout")
        q, k, table = call.q.flatten(1), call.k.flatten(1), call.table.to(call.dtype)
        positions, slots = call.positions.long(), call.slots.long()
        one = torch.ones((), device=call.device)
        scales = [one if scale is None else scale for scale in (call.k_scale, call.v_scale)]
        write = self._ops.reshape_and_cache_flash if call.is_flash else self._ops.reshape_and_cache
        caches = (call.key_cache, call.value_cache)
        kind = "fp8" if call.is_fp8 else "auto"
        if call.is_fp8:
            caches = tuple(cache.view(torch.uint8) for cache in caches)

        def run() -> None:
            self._ops.rotary_embedding(positions, q, k, call.head_dim, table, call.is_neox)
            write(call.k, call.v, *caches, slots, kind, *scales)

        return run


def make_peers(seed_kernel: Optional[str], wanted: Optional[List[str]]) -> Tuple[List[Peer], Dict[str, str]]:
    """The peers that are there, and why the others are not."""
    makers: Dict[str, Callable[[], Peer]] = {
        "kvrope": Kvrope,
        "kvrope rope + cache": KvropeHalves,
        "triton": lambda: load_file("triton", seed_kernel),
        "sglang": Sglang,
        "sglang triton": sglang_triton_kernel,
        "flashinfer": Flashinfer,
        "vllm": Vllm,
        "aiter": aiter_kernel,
        "torch eager": Eager,
        "torch compiled": Compiled,
    }
    peers, absent = [], {}
    for name, make in makers.items():
        if wanted is not None and name not in wanted:
            absent[name] = "not among --peers"
            continue
        try:
            peers.append(make())
        except Absent as reason:
            absent[name] = str(reason)
    return peers, absent
