"""Arrays on the host, and mappings of names to them, as users give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cudnnlite.dtypes import readable
from cudnnlite.errors import ArgumentError, CudnnliteError

Array = np.ndarray[Any, Any]


@runtime_checkable
class HasStateDict(Protocol):
    """A `torch.nn.Module`."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors by name."""


def host_array(value: Any, what: str = "values") -> Array:
    """Return a NumPy array of real numbers, also of a PyTorch tensor, wherever that is.

    `what` names it in an error.
    """
    if hasattr(value, "detach"):
        value = readable(value.detach().cpu())
    try:
        array = np.asarray(value)
    except CudnnliteError:  # an array on the device says so itself
        raise
    except (TypeError, ValueError, MemoryError, OverflowError) as error:
        # A ragged list, or a range that is too long.
        raise ArgumentError(f"{what} cannot be turned into an array: {error}") from error
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ArgumentError(f"{what} is of {array.dtype}; allowed: real numbers")
    return array


def host_array_of_shape(what: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Return the result of `host_array`; ArgumentError if it has another shape."""
    array = host_array(value, what)
    if array.shape != shape:
        raise ArgumentError(f"{what} has shape {array.shape}; needed: {shape}")
    return array


def state_dict_of(state_dict: Mapping[str, Any] | HasStateDict) -> Mapping[str, Any]:
    """Return a `state_dict`, or that of a module; ArgumentError if it is neither."""
    if isinstance(state_dict, type):
        raise ArgumentError(f"state_dict is the class {state_dict.__name__}; needed: a module")
    if isinstance(state_dict, HasStateDict):
        state_dict = state_dict.state_dict()
    check_mapping(state_dict, "state_dict")
    return state_dict


def check_mapping(mapping: Any, argument: str) -> None:
    """Raise ArgumentError unless it is a mapping of names to something."""
    is_mapping = isinstance(mapping, Mapping)
    if not is_mapping or not all(isinstance(name, str) for name in mapping):
        raise ArgumentError(
            f"{argument} of type {type(mapping).__name__} is no mapping of names to arrays"
        )


def check_names(
    argument: str,
    mapping: Mapping[str, Any],
    names: Mapping[str, Any],
    *,
    all_of_them: bool = True,
    hint: Callable[[], str] = str,
) -> None:
    """Raise ArgumentError unless a mapping has all of the names, and no others.

    What `hint` returns ends the message; it is called for a message alone.
    """
    check_mapping(mapping, argument)
    complaints = []
    missing = sorted(set(names) - set(mapping))
    if missing and all_of_them:
        complaints.append(f"missing {', '.join(missing)}")
    unknown = sorted(set(mapping) - set(names))
    if unknown:
        complaints.append(f"not known {', '.join(unknown)}")
    if complaints:
        raise ArgumentError(f"{argument}: {'; '.join(complaints)}{hint()}")
