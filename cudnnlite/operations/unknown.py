"""What is said of an unknown keyword: which argument it may be meant to be, or of which spec it is a field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, NoReturn, TypeVar

from cudnnlite.arguments import shown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def refuse_unknown(function: Callable[..., Any], unknown: Mapping[str, Any]) -> NoReturn:
    """Raise TypeError, as Python does for an unknown keyword; of a field of a spec it says where that belongs."""
    (name, value), parameters = next(iter(unknown.items())), inspect.signature(function).parameters
    hints = [
        f"; it is a field of {argument}: {argument}=dnn.{kind}({name}={shown(value)})"
        for argument, parameter in parameters.items()
        for kind in re.findall(r"\w+Spec\b", str(parameter.annotation))
        if name in inspect.signature(inspect.unwrap(function).__globals__[kind]).parameters
    ]
    hints = hints or [f"; did you mean {close}?" for close in get_close_matches(name, parameters, 1)]
    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{''.join(hints)}") from None


def tells_unknown(function: FunctionT) -> FunctionT:
    """Let the error of an unknown keyword say what may be meant.

    A function with ``**unknown``, one that is called most, sees to it itself and has no wrapper: what is only there to be
    refused is left out of its signature.
    """
    signature = inspect.signature(function)
    known = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(known) < len(signature.parameters):
        function.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
        del function.__annotations__["unknown"]
        return function

    @wraps(function)
    def told(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            parameters = inspect.signature(function).parameters
            unknown = {name: value for name, value in options.items() if name not in parameters}
            if not unknown or (error.__traceback__ is not None and error.__traceback__.tb_next is not None):
                raise  # it was entered: the error is another
            refuse_unknown(function, unknown)

    return told  # type: ignore[return-value]
