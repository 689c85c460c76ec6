"""What is said where a field of a spec is given as an argument of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cudnnlite.arguments import shown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def refuse_unknown(unknown: Mapping[str, Any], **specs: type) -> None:
    """Raise TypeError, as Python does for an unknown keyword; of a field of a spec it says where that belongs."""
    name, value = next(iter(unknown.items()))
    there = [
        f"; it is a field of {argument}: {argument}=dnn.{kind.__name__}({name}={shown(value)})"
        for argument, kind in specs.items()
        if name in inspect.signature(kind).parameters
    ]
    raise TypeError(f"unexpected keyword argument {name!r}{''.join(there)}")


def hides_unknown(function: FunctionT) -> FunctionT:
    """Leave ``**unknown``, which is only there to be refused, out of a function's signature."""
    signature = inspect.signature(function)
    known = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
    del function.__annotations__["unknown"]
    return function
