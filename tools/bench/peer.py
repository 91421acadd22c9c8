"""What an implementation that is measured must have."""

import importlib
from typing import Callable

from .peer_call import Call

Bound = Callable[[], object]


class Absent(Exception):
    """Why a peer is not there."""


class Unsupported(Exception):
    """Why a peer has no call for a case."""


def load_module(module: str) -> object:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package that is there may fail in many ways
        raise Absent(
            f"{module} cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
        ) from error


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Unsupported(what)


class Peer:
    name = ""
    has_pdl = False  # programmatic dependent launch, which is then measured off too
    in_place = False  # rotated rows replace q and k
    loose = False  # its table is rounded to 16 bits

    def bind(self, call: Call) -> Bound:
        raise NotImplementedError
