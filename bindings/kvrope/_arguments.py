"""What the operations' Python functions share: how an operator is called and how a wrong argument is named."""

from collections.abc import Sequence
from typing import Any, Tuple

from torch import Tensor


def option_names(operator: Any) -> Tuple[str, ...]:
    """Of the arguments that an operator's schema takes by name alone, which are its last."""
    return tuple(argument.name for argument in operator._schema.arguments if argument.kwarg_only)


def call_operator(operator: Any, arguments: tuple, options: Tuple[str, ...]) -> None:
    """Call torch.ops' operator with its schema's arguments in order, of which the last are options, taken by name.

    That takes three times as long as its namesake of _C, but also what only torch can take, or name in an error.
    """
    first = len(arguments) - len(options)
    operator(*arguments[:first], **dict(zip(options, arguments[first:])))


def require_bools(operation: str, **options: object) -> None:
    """Raise TypeError where an option is not True or False: torch would take anything for its truth."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise TypeError(f"{operation}: {name}: expected True or False, got {_described(value)}")


def require_sequence(operation: str, name: str, value: object) -> None:
    """Raise TypeError where an argument has no order, as a set, or can be read once, as a generator."""
    if not isinstance(value, Sequence):
        raise TypeError(f"{operation}: {name}: expected a list or tuple, got {_described(value)}")


def require_tensors(operation: str, or_none: bool = False, **arguments: object) -> None:
    """Raise TypeError where an argument is not a tensor, ValueError where it is a nested one."""
    for name, value in arguments.items():
        if or_none and value is None:
            continue
        if not isinstance(value, Tensor):
            fits = "a tensor or None" if or_none else "a tensor"
            raise TypeError(f"{operation}: {name}: expected {fits}, got {_described(value)}")
        if value.is_nested:
            raise ValueError(f"{operation}: {name}: expected a strided tensor, got a nested one")


def raise_as_type_error(error: Exception) -> None:
    """Torch's RuntimeError about a value of another type, as the TypeError that it is."""
    if "Expected a value of type" in str(error):
        raise TypeError(str(error)) from None


def _described(value: object) -> str:
    """The value where that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
