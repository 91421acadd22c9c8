"""A call: the arguments by name, and which operation takes them."""

from dataclasses import dataclass
from typing import Any, Callable

import torch

FUSED = "fused_qk_rope_reshape_and_cache"


@dataclass
class Call:
    arguments: dict[str, Any]
    operation: str = FUSED  # or one of its halves: "rope", "reshape_and_cache"

    def run(self, operation: Callable[..., Any] | None = None) -> Any:
        if operation is None:
            import kvrope

            operation = getattr(kvrope, self.operation)
        return operation(**self.arguments)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, torch.Tensor)}

    def copy(self, device: str | None = None, **changes: Any) -> "Call":
        """The same call on copies of its tensors: same strides and neighbours, storages shared as here."""
        storages: dict[int, torch.Tensor] = {}
        arguments = dict(self.arguments)
        for name, tensor in self.tensors().items():
            pointer = tensor.untyped_storage().data_ptr()
            if pointer not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
                storages[pointer] = whole.to(device or tensor.device, copy=True)
            copy = torch.empty(0, dtype=tensor.dtype, device=storages[pointer].device)
            arguments[name] = copy.set_(
                storages[pointer].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        for output, source in (("q_out", "q"), ("k_out", "k")):
            given = self.arguments.get(output)
            if given is not None and given is self.arguments[source]:
                arguments[output] = arguments[source]
        return Call({**arguments, **changes}, self.operation)
