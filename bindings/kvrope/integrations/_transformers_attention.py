"""One attention layer of transformers with kvrope: its own forward, with two of its names replaced.

A layer's forward projects, calls ``apply_rotary_pos_emb`` and hands q, k and v to an attention function,
which calls ``cache.update``: write the new rows, read all that the batch attends to. Here the rotation is
left out, and between the layer and the attention function stands FusedAttention: it rotates and writes by one
call of kvrope and passes a cache on whose ``update`` only reads.
"""

import inspect
from functools import partial
from types import FunctionType
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ._transformers_table import RotaryTables

# The operator itself: its Python function costs more time than the call where a step is a few milliseconds.
_rotate_and_cache = torch.ops.kvrope.fused_qk_rope_reshape_and_cache.default

_REPLACED = ("apply_rotary_pos_emb", "ALL_ATTENTION_FUNCTIONS")


class FusedForward:
    """The forward of one attention layer: kvrope's under continuous batching, the class's own elsewhere."""

    is_kvrope = True

    def __init__(
        self, layer: torch.nn.Module, attention: "FusedAttention", rotary: torch.nn.Module
    ) -> None:
        self.rotary = rotary
        own = type(layer).forward
        names = {**own.__globals__, **dict(zip(_REPLACED, (_not_yet_rotated, attention)))}
        del names["__name__"]  # by it torch.compile would look names up in the module
        fused = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
        fused.__kwdefaults__ = own.__kwdefaults__
        self._own, self._fused = partial(own, layer), partial(fused, layer)

    @staticmethod
    def missing_names(layer: torch.nn.Module) -> List[str]:
        """The names that the layer's forward would have to use as transformers defines them, and does not."""
        own = type(layer).forward
        code, names = getattr(own, "__code__", None), getattr(own, "__globals__", {})
        if code is None:
            return list(_REPLACED)
        rotation = getattr(inspect.unwrap(names.get(_REPLACED[0])), "__code__", None)
        is_known = (
            rotation is not None and rotation.co_filename == code.co_filename,
            names.get(_REPLACED[1]) is ALL_ATTENTION_FUNCTIONS,
        )
        return [
            name for name, known in zip(_REPLACED, is_known) if not known or name not in code.co_names
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_paged = isinstance(kwargs.get("cache"), PagedAttentionCache)
        writes_itself = kwargs.get("block_table") is not None  # flash attention's decode
        if not is_paged or writes_itself:
            return self._own(*args, **kwargs)
        return self._fused(*args, kvrope_angles=kwargs["position_embeddings"], **kwargs)


def _not_yet_rotated(q: Tensor, k: Tensor, *_: Any, **__: Any) -> Tuple[Tensor, Tensor]:
    return q, k


class FusedAttention:
    """Stands for ALL_ATTENTION_FUNCTIONS in the layers' forward."""

    def __init__(self, tables: RotaryTables) -> None:
        self._tables = tables

    def get_interface(self, name: str, default: Callable) -> Callable:
        return partial(self._attend, ALL_ATTENTION_FUNCTIONS.get_interface(name, default))

    def _attend(
        self,
        attention: Callable,
        layer: torch.nn.Module,
        query: Tensor,  # (1, QH, T, D)
        key: Tensor,  # (1, KH, T, D)
        value: Tensor,
        attention_mask: Any,
        *,
        cache: PagedAttentionCache,
        kvrope_angles: Tuple[Tensor, Tensor],
        position_ids: Tensor,  # (1, T)
        read_index: List[Tensor],
        write_index: List[Tensor],
        **kwargs: Any,
    ) -> Any:
        group, index = cache.layer_index_to_group_indices[layer.layer_idx]
        pages = (cache.key_cache[index], cache.value_cache[index])  # (slots, KH, D) each
        # A window's slots are reused: what a chunk overwrites is read before it is written.
        reads_first = cache.sliding_windows[layer.layer_idx] != 1 and read_index[group].numel() > 0
        before = [page.index_select(0, read_index[group]) for page in pages] if reads_first else None

        cos_sin, positions = self._tables.of(layer.layer_idx, kvrope_angles, position_ids[0], cache)
        rows = [x[0].transpose(0, 1) for x in (query, key, value)]  # (T, heads, D)
        blocks = [page.view(-1, cache.block_size, *page.shape[1:]) for page in pages]
        q_out, k_out = (torch.empty(row.shape, dtype=row.dtype, device=row.device) for row in rows[:2])
        _rotate_and_cache(
            *rows, *blocks, write_index[group], positions, cos_sin, k_scale=None, v_scale=None, is_neox=True,
            flash_layout=True, apply_scale=False, offs=None, q_out=q_out, k_out=k_out, zeros_out=None,
            swa_slot_mapping=None, rotary_dim=cos_sin.shape[1],
        )  # fmt: skip
        query, key = q_out.transpose(0, 1)[None], k_out.transpose(0, 1)[None]
        written = _WrittenCache(cache, pages, before)
        return attention(
            layer, query, key, value, attention_mask, cache=written, position_ids=position_ids,
            read_index=read_index, write_index=write_index, **kwargs,
        )  # fmt: skip


class _WrittenCache:
    """The cache after a layer's write: ``update`` reads what PagedAttentionCache.update does, no more."""

    def __init__(
        self, cache: PagedAttentionCache, pages: Tuple[Tensor, Tensor], before: Optional[List[Tensor]]
    ) -> None:
        self._cache, self._pages, self._before = cache, pages, before

    def update(
        self,
        key_states: Tensor,  # (1, KH, T, D)
        value_states: Tensor,
        layer_idx: int,
        read_index: List[Tensor],
        write_index: List[Tensor],
    ) -> Tuple[Tensor, Tensor]:
        read = read_index[self._cache.layer_index_to_group_indices[layer_idx][0]]
        new = [states.transpose(1, 2).squeeze(0) for states in (key_states, value_states)]
        if read.numel() == 0:  # the batch attends to its own rows alone
            return new[0], new[1]
        if self._before is None:
            return self._pages[0].index_select(0, read), self._pages[1].index_select(0, read)
        is_new = (read == self._cache.sentinel_index)[:, None, None]
        for old, states in zip(self._before, new):
            old.masked_scatter_(is_new, states)
        return self._before[0], self._before[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)
