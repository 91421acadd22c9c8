"""Rows that a CUDA launch could not serve, known only on the device."""

from typing import NamedTuple, Optional, Union

import torch

from . import _C


class Fault(NamedTuple):
    """One bad row of the first faulting launch on a device.

    kind: "position_out_of_range", "slot_out_of_range" or "window_slot_out_of_range".
    argument: the argument that held the value: "pos", "slot_mapping" or "swa_slot_mapping".
    row: the token. value: its effective position (pos + offs) or its slot.
    """

    kind: str
    argument: str
    row: int
    value: int


def last_fault(device: Union[torch.device, str]) -> Optional[Fault]:
    """The fault recorded on ``device`` since the last ``check``, or None.

    Waits for the current stream; a launch on another stream that has not ended shows later. Always None on a
    CPU device: there the call itself raises. ValueError while this thread captures a graph; captures of other
    threads go on undisturbed.
    """
    fault = _C.last_fault(torch.device(device))
    return None if fault is None else Fault(*fault)


def check(device: Union[torch.device, str]) -> None:
    """Raise IndexError with the fault recorded on ``device``, if there is one, and clear it.

    Waits as ``last_fault`` does.
    """
    _C.check(torch.device(device))
