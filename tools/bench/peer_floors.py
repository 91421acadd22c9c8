"""What the candidates are measured against: the floors of tools/runner/bench_floors.h."""

import ctypes
from typing import Dict, List, Optional, Tuple

import torch

from .peer_call import Call
from .timed_calls import Library, Run

MOST_CHAIN_TOKENS, MOST_CHAIN_WORDS, CHAIN_TABLE_COLUMNS = 512, 512, 128


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _half_in_words(count: int) -> int:
    return max(1, count // 2 // 16)


def make_floors(sets: List[Call], library: Optional[Library], own_tables: bool) -> Dict[str, Tuple[int, Run]]:
    """Name -> bytes it reads and writes, and its call."""
    moved, device = sets[0].bytes(), sets[0].device
    rows, everything = _half_in_words(moved.rows), _half_in_words(moved.all)
    buffers = [torch.ones(2, everything * 2, dtype=torch.int64, device=device) for _ in sets]

    def memcpy(i: int) -> None:
        source, target = buffers[i % len(sets)]
        target.copy_(source)

    floors: Dict[str, Tuple[int, Run]] = {"memcpy": (everything * 32, memcpy)}
    if library is None:
        return floors

    def copy(i: int) -> None:
        source, target = buffers[i % len(sets)]
        library("kvrope_floor_copy", _pointer(source), _pointer(target), ctypes.c_int64(rows), _stream())

    floors["copy"] = (rows * 32, copy)
    if sets[0].tokens <= MOST_CHAIN_TOKENS:
        floors["chain"] = _chain(sets, library, own_tables)
    return floors


def _chain(sets: List[Call], library: Library, own_tables: bool) -> Tuple[int, Run]:
    first, tokens = sets[0], sets[0].tokens
    words = max(1, min(MOST_CHAIN_WORDS, first.q_heads * first.head_dim * first.dtype.itemsize // 16))
    table = torch.ones(first.table_rows, CHAIN_TABLE_COLUMNS, device=first.device)
    buffers = []
    for call in sets:
        q, q_out = (torch.ones(tokens, words * 2, dtype=torch.int64, device=first.device) for _ in range(2))
        cache = torch.ones(int(call.slots.max()) + 1, words * 2, dtype=torch.int64, device=first.device)
        buffers.append(
            (
                torch.atleast_2d(call.positions)[0].long(),
                table.clone() if own_tables else table,
                call.slots.long(),
                q,
                q_out,
                cache,
            )
        )

    def chain(i: int) -> None:
        library(
            "kvrope_floor_chain",
            *map(_pointer, buffers[i % len(buffers)]),
            ctypes.c_int(tokens),
            ctypes.c_int(words),
            _stream(),
        )

    return tokens * (48 * words + CHAIN_TABLE_COLUMNS * 2 + 16), chain
