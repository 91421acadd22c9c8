"""Calls on tensors without data: shapes, strides, offsets, what is shared as in the call on real ones."""

from typing import Callable

import torch

from cases import Call


def converted_call(call: Call, convert: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """One that is both input and output stays one."""
    converted: dict[int, torch.Tensor] = {}
    for tensor in call.tensors().values():
        if id(tensor) not in converted:
            converted[id(tensor)] = convert(tensor)
    tensors = {name: converted[id(tensor)] for name, tensor in call.tensors().items()}
    return Call({**call.arguments, **tensors}, call.operation)


def on_meta(call: Call) -> Call:
    storages: dict[int, torch.UntypedStorage] = {}

    def to_meta(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device="meta")
        empty = torch.empty(0, dtype=tensor.dtype, device="meta")
        return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    return converted_call(call, to_meta)
