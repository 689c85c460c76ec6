"""Hints for unknown names: a similar argument, the spec that has the field, C's name."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import takewhile
from typing import Any, NoReturn, TypeVar

from cudnnlite import enums
from cudnnlite._raw import types
from cudnnlite._raw.enums import C_MEMBERS
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.arguments import shown
from cudnnlite.dtypes import dtype_name
from cudnnlite.other_libraries import attribute_hint, keyword_hint

# How the name of a later version of a C function ends: cudnnSetRNNDescriptor_v8.
_VERSION = re.compile(r"_v(\d+)$")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ClassT = TypeVar("ClassT", bound=type)

# The specs that do not stand at the top of the package.
SELDOM_SPECS = frozenset(
    {"OpTensorSpec", "RNNDataSpec", "ReduceTensorSpec", "SeqDataSpec", "TensorTransformSpec"}
)


def meant(name: str, choices: Iterable[str], most: int = 1) -> str:
    """Return a hint at the names that are nearest to an unknown one; empty if none is near."""
    from difflib import get_close_matches  # for a refusal alone

    close = get_close_matches(name, choices, most)
    return f"; did you mean {', '.join(close)}?" if close else ""


def refuse_attribute(owner: object, name: str, elsewhere: Mapping[str, str]) -> object:
    """Raise AttributeError for an attribute that an object lacks: the body of `__getattr__`.

    Python calls `__getattr__`, too, if a property raised AttributeError.  The property is computed
    again then, and says why.

    Parameters
    ----------
    owner : object
        The object.
    name : str
        The name of the attribute.
    elsewhere : mapping of str to str
        The names of other libraries, with what is ours.
    """
    own = getattr(type(owner), name, None)
    if isinstance(own, (property, functools.cached_property)):
        return own.__get__(owner, type(owner))
    raise AttributeError(_missing_attribute(owner, name, elsewhere))


def _missing_attribute(owner: object, name: str, elsewhere: Mapping[str, str]) -> str:
    """Return the message for an attribute that an object lacks, with a hint."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    hint = attribute_hint(elsewhere, name) or c_name_hint(name)
    if hint or name.startswith("_"):
        return text + hint
    public_names = (own_name for own_name in dir(owner) if not own_name.startswith("_"))
    return text + meant(name, public_names)


def c_name_hint(name: str) -> str:
    """Return where a C function, or a constant of the headers, is; empty for any other name."""
    if name in FUNCTIONS:
        return f"; Handle.api has it: handle.api.{name}"
    if name.startswith("cudnn"):
        return meant_c_function(name, FUNCTIONS)
    if not name.startswith("CUDNN_"):
        return ""
    if hasattr(types, name):
        return f"; it is dnn.raw.types.{name}"
    for kind in C_MEMBERS:
        member = enums.members_by_c_name(kind).get(name.upper())
        if member is not None:
            module = "dnn.enums" if kind.__name__ in enums.__all__ else "dnn.raw.enums"
            return f"; it is {module}.{kind.__name__}.{member.name}"
    return meant(name, (c_name for c_names in C_MEMBERS.values() for c_name in c_names))


def meant_c_function(name: str, functions: Iterable[str]) -> str:
    """Return a hint at the C functions that are nearest to an unknown one; empty if none is near.

    These are the versions of the same function, the newest first, or else those with a similar
    spelling, the longest common beginning first.
    """
    from difflib import get_close_matches  # for a refusal alone

    functions = list(functions)
    versions = [function for function in functions if _unversioned(function) == _unversioned(name)]
    if versions:
        versions.sort(key=_version_of, reverse=True)
        return f"; did you mean {', '.join(versions)}?"
    close = get_close_matches(name, functions, 3)
    close.sort(key=lambda function: _shared_beginning(function, name), reverse=True)
    if close:
        return f"; did you mean {', '.join(close)}?"
    beginnings = [function for function in functions if name.startswith(_unversioned(function))]
    return f"; did you mean {max(beginnings, key=len)}?" if beginnings else ""


def _shared_beginning(name: str, other: str) -> int:
    """Return how many characters two names have in common from the first on."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False))))


def _unversioned(function: str) -> str:
    return _VERSION.sub("", function)


def _version_of(function: str) -> int:
    match = _VERSION.search(function)
    return int(match[1]) if match else 0


def why_unknown(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return a message about the first keyword that a function does not have, with a hint.

    The text is empty if the function has all keywords.
    """
    parameters = inspect.signature(function).parameters
    for name, value in options.items():
        if name not in parameters:
            function_name = getattr(function, "__qualname__", "")
            hint = _hint(function, name, value) or keyword_hint(function_name, name)
            hint = hint or meant(name, parameters)
            return f"got an unexpected keyword argument {name!r}{hint}"
    return ""


def _hint(function: Callable[..., Any], name: str, value: Any) -> str:
    """Return which argument takes an unknown keyword's value as a field; empty if none does."""
    parameters = inspect.signature(function).parameters
    if name == "batch_first" and "layout" in parameters:  # PyTorch's keyword
        return "; layout='batch_major' says that"
    module_names = inspect.unwrap(function).__globals__
    hints = []
    for argument, parameter in parameters.items():
        for kind in re.findall(r"\w+(?:Spec|Policy)\b", str(parameter.annotation)):
            spec = module_names.get(kind)
            if spec and name in inspect.signature(spec).parameters:
                example = f"{argument}={path_of_spec(kind)}({name}={_shown_for_spec(value)})"
                hints.append(f"; it is a field of {argument}: {example}")
    return "".join(hints)


def _shown_for_spec(value: Any) -> str:
    """Return a value as a program writes it: a member of an enum by the name that a spec takes."""
    if isinstance(value, enums.DataType):
        return repr(dtype_name(value))
    return repr(value.name.lower()) if isinstance(value, Enum) else shown(value)


def path_of_spec(name: str) -> str:
    """Return how a program writes a spec: "dnn.PoolingSpec"."""
    return f"dnn.specs.{name}" if name in SELDOM_SPECS else f"dnn.{name}"


def refuse_unknown(function: Callable[..., Any], unknown: Mapping[str, Any]) -> NoReturn:
    """Raise TypeError, as Python does for an unknown keyword."""
    raise TypeError(f"{function.__qualname__}() {why_unknown(function, unknown)}") from None


def was_entered(error: TypeError) -> bool:
    """Return whether the function that the catching frame called raised the error itself.

    Otherwise Python raised it at the call, because the arguments do not fit the signature.
    """
    # The first traceback entry is the frame that called.  There is a second one only if the called
    # function ran.
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _missing_hint(signature: inspect.Signature, message: str) -> str:
    """Return the required arguments, for a message about a missing one; empty for any other."""
    if "missing" not in message:
        return ""
    required = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and name != "self"
    ]
    return f"; needed in this order: {', '.join(required)}"


def suggest_keywords(function: FunctionT) -> FunctionT:
    """Decorate a function: the TypeError for an unknown or a missing argument gets a hint.

    A function with ``**unknown`` calls `refuse_unknown` itself and needs no wrapper, which would
    cost time at each call.  ``**unknown`` is left out of its signature, because everything in it is
    refused.  A function that passes its keywords on, such as a derived class's `__init__`, stays as
    it is.
    """
    signature = inspect.signature(function)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    if len(parameters) < len(signature.parameters):
        if "unknown" in signature.parameters:
            public_signature = signature.replace(parameters=parameters)
            function.__signature__ = public_signature  # type: ignore[attr-defined]
            function.__annotations__.pop("unknown", None)
        return function

    @functools.wraps(function)
    def suggesting(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            if was_entered(error):
                raise
            if why_unknown(function, options):
                refuse_unknown(function, options)
            raise TypeError(f"{error}{_missing_hint(signature, str(error))}") from None

    return suggesting  # type: ignore[return-value]


def methods_of(public_name: str) -> Callable[[ClassT], ClassT]:
    """Decorate a class: errors call its methods by a public class, wherever they are defined."""

    def rename(kind: ClassT) -> ClassT:
        for name, value in vars(kind).items():
            if inspect.isfunction(value):
                value.__qualname__ = f"{public_name}.{name}"
        return kind

    return rename
