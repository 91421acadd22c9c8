"""What Python needs besides the torch operator, which loading this module registers."""

from typing import Optional, Tuple

import torch

__version__: str
has_cuda: bool

def last_fault(device: torch.device) -> Optional[Tuple[str, str, int, int]]: ...
def check(device: torch.device) -> None: ...
