"""`Described`: a problem told to cuDNN: its descriptors, and calls with their arguments found by the header's names."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.descriptors import DESCRIPTORS, check_describable
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.errors import CudnnError, NotSupportedError
from cudnnlite.operations.problem import Problem
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.frozen import FrozenSpec


class Described:
    """The descriptors of a problem on one handle.

    Parameters
    ----------
    handle : Handle
        Whose table is called.
    problem : Problem
        What is described.
    stack : ExitStack
        Owns the descriptors.
    beta : float, optional
        Instead of the problem's own, as `alpha`.
    partly : bool
        Whether a convolution that no descriptor can describe is left out; a graph describes it.

    Attributes
    ----------
    descriptors : dict
        Of operands and options, by name.
    """

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        stack: ExitStack,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        partly: bool = False,
    ) -> None:
        self.handle, self.problem = handle, problem
        specs, operation = problem.specs, problem.operation
        first = next(iter(specs.values()))
        for name, spec in specs.items():
            check_describable(spec, operation.argument(name))
        described = {name: spec for name, spec in specs.items() if name not in operation.shared} | {
            name: value
            for name, value in problem.options.items()
            if isinstance(value, FrozenSpec) and not (partly and is_asymmetric(value))
        }
        self.descriptors = {
            name: stack.enter_context(_descriptor_of(type(spec)).describing(spec, first.rank - 2))
            for name, spec in described.items()
        }
        # in the host type that cuDNN wants for them: double beside double tensors, float otherwise
        kind = np.float64 if first.dtype == DataType.DOUBLE else np.float32
        given = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if value is not None}
        scalars = {name: problem.values[name] for name in (*operation.scalars, *operation.by_address)} | given
        self._scalars = {name: np.array(value, kind) for name, value in scalars.items()}
        self._values: dict[str, Any] = {name: value.ctypes.data for name, value in self._scalars.items()}
        self._values |= {f"{name}Desc": descriptor.ptr for name, descriptor in self.descriptors.items()}
        self._values |= dict.fromkeys([*specs, "workSpace"], 0) | {"handle": handle.ptr}
        plain = {name: value for name, value in problem.options.items() if name not in self.descriptors}
        self._values = {**operation.constants, **plain, **self._values}

    def _arguments(self, function: str, given: dict[str, Any]) -> list[Any]:
        values, names = self._values | given, self.problem.operation.names
        return [values[names.get(name, name)] for name in FUNCTIONS[function].argnames]

    def workspace(self) -> int:
        """Return the bytes of workspace that an operation without a choice of algorithms needs."""
        size = ctypes.c_size_t()
        if self.problem.operation.workspace:
            self.ask(self.problem.operation.workspace, sizeInBytes=size)
        return size.value

    def ask(self, function: str, **given: Any) -> None:
        """Call a C function now; what the problem does not say is given by the header's names."""
        getattr(self.handle.api, function)(*self._arguments(function, given))

    def prepare(self, function: str = "", **given: Any) -> PreparedCall:
        """Return the operation's call, or another that takes what it takes, addresses missing."""
        function = function or self.problem.operation.function
        return self.handle.api.prepare(function, *self._arguments(function, given))


def is_asymmetric(option: Any) -> bool:
    """Tell whether an option is a convolution padded differently at the two ends of an axis, which graphs alone do."""
    return isinstance(option, ConvolutionSpec) and not option.is_symmetric


def _descriptor_of(kind: type) -> Any:
    """Return the class of descriptors of a spec's class, which may be derived from one of ours."""
    return next(DESCRIPTORS[base] for base in kind.__mro__ if base in DESCRIPTORS)


def involve(error: CudnnError, problem: Problem) -> CudnnError:
    """Add the specs to an error's message, and what is known to be refused; returns the error."""
    hint = problem.operation.hint(problem) if isinstance(error, NotSupportedError) else ""
    error.notes += (hint,) if hint else ()
    return error.involving(**problem.specs, **problem.options)
