"""cos_sin tables with the values of a model's own rotary module."""

from typing import Any, Dict, Tuple

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cache import PagedAttentionCache

_PIECE = 65536  # rows


class RotaryTables:
    """The table of each layer, for its positions.

    Where a model's angles depend on the position alone, one table serves as long as a cache lives. It has a
    row for each slot of the cache: no request can be longer. It belongs to the cache, so that captured graphs
    find it. dynamic and longrope change their frequencies with the longest request of the step, and models of
    window layers alone have requests longer than their cache: there the angles that the model has worked out
    for the step are the table, and token t takes row t.
    """

    def __init__(self, rotary: torch.nn.Module, config: Any) -> None:
        self._rotary = rotary
        self._layer_types = config.layer_types if isinstance(rotary.rope_type, dict) else None
        self._of_step: Dict = {}

    def of(
        self, layer: int, angles: Tuple[Tensor, Tensor], positions: Tensor, cache: PagedAttentionCache
    ) -> Tuple[Tensor, Tensor]:
        """(P, R) cosines and sines, and the row of each token. angles: the model's own for this step."""
        layer_type = None if self._layer_types is None else self._layer_types[layer]
        if self._depends_on_length(layer_type) or cache.num_full_attention_groups == 0:
            return self._rows_of_step(layer_type, angles)
        name = f"_kvrope_cos_sin_{layer_type}"
        if not hasattr(cache, name):
            setattr(cache, name, self._all_positions(layer_type, angles[0], cache.num_pages))
        return getattr(cache, name), positions

    def _depends_on_length(self, layer_type: "str | None") -> bool:
        rope_type = self._rotary.rope_type if layer_type is None else self._rotary.rope_type[layer_type]
        return "dynamic" in rope_type or rope_type == "longrope"

    def _all_positions(self, layer_type: "str | None", like: Tensor, rows: int) -> Tensor:
        """Piece by piece: the engine has left little memory for temporary tensors."""
        extra = () if layer_type is None else (layer_type,)
        pieces = torch.arange(rows, device=like.device).split(_PIECE)
        return torch.cat([self._table(self._rotary(like, piece[None], *extra)) for piece in pieces])

    def _rows_of_step(self, layer_type: "str | None", angles: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
        """Made by the first layer of a step, for all of its layers."""
        if torch.compiler.is_compiling():  # the compiler finds that all layers make the same
            return self._table_and_rows(angles)
        known_by, *result = self._of_step.get(layer_type, (None,))
        if known_by is not angles[0]:
            result = self._table_and_rows(angles)
            self._of_step[layer_type] = (angles[0], *result)
        return result[0], result[1]

    def _table_and_rows(self, angles: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
        table = self._table(angles)
        return table, torch.arange(table.shape[0], device=table.device)

    def _table(self, angles: Tuple[Tensor, Tensor]) -> Tensor:
        """One column a pair; values in the model's dtype, as the model has them, held in fp32."""
        cosines, sines = angles[0][0], angles[1][0]
        if not self._has_a_column_a_pair():
            half = cosines.shape[1] // 2
            cosines, sines = cosines[:, :half], sines[:, :half]
        return torch.cat((cosines, sines), dim=1).float()

    def _has_a_column_a_pair(self) -> bool:
        return type(self._rotary).__name__ == "GptOssRotaryEmbedding"  # the others have each pair's twice
