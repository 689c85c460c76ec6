"""What is said of an unknown keyword: which argument it may be meant to be, or of which spec it is a field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, NoReturn, TypeVar

from cudnnlite.arguments import shown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def meant(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return a hint at the known names that are nearest to an unknown one; '' if none is near."""
    close = get_close_matches(name, known, most)
    return f"; did you mean {', '.join(close)}?" if close else ""


def why_unknown(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return what is said of the first option that a function does not have, '' if it has all; of a spec's field, of which."""
    parameters = inspect.signature(function).parameters
    for name, value in options.items():
        if name not in parameters:
            hints = [
                f"; it is a field of {argument}: {argument}=dnn.{kind}({name}={shown(value)})"
                for argument, parameter in parameters.items()
                for kind in re.findall(r"\w+Spec\b", str(parameter.annotation))
                if (spec := inspect.unwrap(function).__globals__.get(kind))
                and name in inspect.signature(spec).parameters
            ]
            if name == "batch_first" and "layout" in parameters:  # PyTorch's word
                hints = ["; layout='batch_major' says that"]
            return f"got an unexpected keyword argument {name!r}{''.join(hints) or meant(name, parameters)}"
    return ""


def refuse_unknown(function: Callable[..., Any], unknown: Mapping[str, Any]) -> NoReturn:
    """Raise TypeError, as Python does for an unknown keyword."""
    raise TypeError(f"{function.__qualname__}() {why_unknown(function, unknown)}") from None


def suggest_keywords(function: FunctionT) -> FunctionT:
    """Let the error of an unknown keyword say what may be meant.

    A function with ``**unknown``, one that is called most, sees to it itself and has no wrapper:
    what is only there to be refused is left out of its signature.  One that hands its keywords on,
    a derived class's `__init__`, stays as it is.
    """
    signature = inspect.signature(function)
    known = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(known) < len(signature.parameters):
        if "unknown" in signature.parameters:
            function.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
            function.__annotations__.pop("unknown", None)
        return function

    @wraps(function)
    def suggesting(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            if (error.__traceback__ is not None and error.__traceback__.tb_next) or not why_unknown(
                function, options
            ):
                raise  # it was entered: the error is another
            refuse_unknown(function, options)

    return suggesting  # type: ignore[return-value]
