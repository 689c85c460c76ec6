"""`Problem`: an operation with its specs and options, as a value.

A problem holds specs and no arrays.  Plans are made for it, searches compare candidates for it, and
caches store choices under it.  It can be listed, saved and sent to another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from functools import lru_cache
from inspect import signature
from types import MappingProxyType
from typing import Any

from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import instance_of, real_number, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import refuse_overflow
from cudnnlite.enums import DataType, MathType, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNSpec, TensorSpec
from cudnnlite.specs.frozen import FrozenSpec, exact_key, from_plain, to_plain
from cudnnlite.unknown import path_of_spec

SCALARS = {"alpha": 1.0, "beta": 0.0}


class Problem:
    """An operation with its specs, options and scalars: a frozen, hashable value.

    Problems are equal if all of these are.

    Parameters
    ----------
    operation : Operation
        The operation.
    **values
        The fields that `Operation.fields` names; each is an attribute, too.  The specs of outputs
        and the scalars may be left out.

    Raises
    ------
    ArgumentError
        A value has a wrong type, or the values do not fit together; the message names the argument.
    """

    kind: str
    operation: Operation
    values: Mapping[str, Any]

    def __init__(self, operation: Operation, **values: Any) -> None:
        instance_of(operation, Operation, "operation")
        _check_fields(operation, values)
        inputs = {name: values[name] for name in operation.reads}
        outputs = {name: values[name] for name in operation.writes if values.get(name) is not None}
        for name, spec in (inputs | outputs).items():
            instance_of(spec, FilterSpec if name in operation.filters else TensorSpec, name)
        options = {
            name: parse_option(values[name], name, kind) for name, kind in operation.options.items()
        }
        scalars = _complete_scalars(operation, values)
        if operation.writes:
            outputs = _complete_outputs(operation, inputs, outputs, options)
            operation.check_dtypes(inputs | outputs)
            operation.check(inputs | outputs, options | scalars)
            _check_scalars(inputs | outputs, options | scalars)
        options = dict(operation.complete(inputs | outputs, options))
        if operation.writes:
            operation.check_without_descriptor(inputs | outputs | options)
        fields = inputs | options | outputs | scalars
        self._set_fields(operation, {name: fields[name] for name in operation.fields})

    def _set_fields(self, operation: Operation, values: Mapping[str, Any]) -> None:
        """Set all attributes; nothing is checked."""
        vars(self).update(
            values, operation=operation, values=MappingProxyType(dict(values)), kind=operation.name
        )
        vars(self)["_hash"] = hash((operation.name, *exact_key(values.values())))

    @property
    def specs(self) -> dict[str, Any]:
        """The specs of the operands by name, the inputs first."""
        return {name: self.values[name] for name in (*self.operation.reads, *self.operation.writes)}

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {name: self.values[name] for name in self.operation.options}

    @property
    def flops(self) -> int:
        """The multiplications and additions of the direct method, those of the padding included."""
        return self.operation.description.flops(self)

    @property
    def math_type(self) -> MathType:
        """The math type that the user requested; it limits the choice of algorithms."""
        for option in self.options.values():
            if isinstance(option, (ConvolutionSpec, RNNSpec)):
                return option.math_type
        return MathType.DEFAULT

    def to_plain(self) -> dict[str, Any]:
        """Return every field as a JSON value, and the kind of problem under 'kind'."""
        return {"kind": self.kind, **{name: to_plain(value) for name, value in self.values.items()}}

    def replace(self, **changes: Any) -> Any:
        """Return a problem with some fields replaced."""
        values = {**self.values, **changes}
        return Problem(self.operation, **values)

    # Type checkers see here that the values are attributes.
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self.__class__.__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(
            f"a {type(self).__name__} does not change; {name!r} cannot be set"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        if self.operation is not other.operation:
            return False
        return exact_key(self.values.values()) == exact_key(other.values.values())

    def __hash__(self) -> int:
        return int(vars(self)["_hash"])

    def __reduce__(self) -> Any:
        return _restored, (self.kind, dict(self.values))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"<problem {self.kind}({values})>"

    @cached_property
    def terms(self) -> str:
        """The specs and options in words: 'x by w to y, conv'."""
        specs = self.specs
        inputs = " by ".join(str(specs[name]) for name in self.operation.reads)
        outputs = " by ".join(str(specs[name]) for name in self.operation.writes)
        options = "".join(f", {option}" for option in self.options.values())
        return f"{inputs} to {outputs}{options}"

    def __str__(self) -> str:
        return self.operation.description.title(self)


def problem_from_plain(plain: Any) -> Problem:
    """Return the problem that `Problem.to_plain` wrote; ArgumentError if it is not a whole one."""
    name = plain.get("kind") if isinstance(plain, Mapping) else None
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        raise ArgumentError(
            f"{shown(plain)} is not a problem; "
            f"allowed: an object with 'kind', one of {[*OPERATIONS]}"
        )
    values = {
        name: from_plain(value, name) if isinstance(value, Mapping) else value
        for name, value in plain.items()
        if name != "kind"
    }
    try:
        return Problem(operation, **values)
    except TypeError as error:
        raise ArgumentError(f"{shown(plain)} is not a {operation.name} problem: {error}") from error


def _restored(kind: str, values: Mapping[str, Any]) -> Problem:
    """Return a pickled problem, whose values were checked before."""
    problem = Problem.__new__(Problem)
    problem._set_fields(OPERATIONS[kind], values)
    return problem


def _check_fields(operation: Operation, values: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown field, and for an input or option that is missing."""
    unknown = set(values) - set(operation.fields)
    missing = {*operation.reads, *operation.options} - set(values)
    if unknown or missing:
        raise TypeError(
            f"{operation.name} has the fields {', '.join(operation.fields)}; "
            f"given: {', '.join(values)}"
        )


def _complete_outputs(
    operation: Operation,
    inputs: Mapping[str, Any],
    outputs: dict[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the specs of all outputs, those that were passed checked and the others inferred."""
    expected = operation.expected({**inputs, **outputs, **options})
    for name, spec in outputs.items():
        check_shape(operation.argument(name), spec, expected[name])
        if name not in operation.filters and spec.overlaps_itself:
            raise ArgumentError(
                f"{operation.argument(name)}={spec}: its values overlap each other in memory"
            )
    return expected | outputs


def _complete_scalars(operation: Operation, values: Mapping[str, Any]) -> dict[str, float]:
    """Return all scalars; an output's own are those of the other outputs if they are not given."""
    scalars: dict[str, float] = {}
    for name in operation.scalars:
        shared = operation.shared_scalars.get(name)
        if shared is None:
            value = values.get(name, SCALARS[name])
        elif values.get(name) is None:
            value = scalars[shared]
        else:
            value = values[name]
        scalars[name] = real_number(value, name)
    return scalars


def _check_scalars(specs: Mapping[str, Any], scalars: Mapping[str, Any]) -> None:
    """Raise ArgumentError for a number that is too large for the type that C takes it in.

    C takes scalars as double for double operands, and as float for all others.
    """
    first = next(iter(specs.values()))
    dtype = DataType.DOUBLE if first.dtype == DataType.DOUBLE else DataType.FLOAT
    for name, value in scalars.items():
        if type(value) is float:
            refuse_overflow(value, dtype, name)


def parse_option(value: Any, argument: str, kind: Any) -> Any:
    """Return an option; ArgumentError for a value of another type.

    An enum's member may be passed by its name, and so may a spec that a name determines.
    """
    if isinstance(value, (str, CEnum)):  # one-line calls have the same names each time
        return _named_option(value, argument, kind)
    return _new_option(value, argument, kind)


@lru_cache(maxsize=256, typed=True)
def _named_option(name: str | CEnum, argument: str, kind: Any) -> Any:
    return _new_option(name, argument, kind)


def _new_option(value: Any, argument: str, kind: Any) -> Any:
    if hasattr(kind, "__members__"):
        return parse_enum(kind, value, argument)
    if kind is float:  # before NumPy's float64, which is an instance of float
        return real_number(value, argument)
    # A bool is an instance of int, but no number here.
    is_wrong_bool = isinstance(value, bool) and kind is not bool
    if isinstance(value, kind) and not is_wrong_bool:
        return value
    if isinstance(value, (str, getattr(kind, "named_by", str))) and hasattr(kind, "named_by"):
        return kind(parse_enum(kind.named_by, value, argument))
    hint = "; pass its .spec" if isinstance(getattr(value, "spec", None), kind) else ""
    if not hint and issubclass(kind, FrozenSpec):
        parameters = ", ".join([*signature(kind).parameters][:3])
        hint = f": {path_of_spec(kind.__name__)}({parameters}, ...)"
    return instance_of(value, kind, argument, hint)


def check_shape(argument: str, out: TensorSpec, expected: TensorSpec) -> None:
    """Raise ArgumentError unless an output has the shape of the result."""
    if out.shape != expected.shape:
        raise ArgumentError(f"{argument} has shape {out.shape}; the result has {expected.shape}")


def beta_of(problem: Problem, output: str) -> str | None:
    """Return the name of the factor of an output's old values; None if they are not read."""
    scalars = problem.operation.scalars_of(output)
    if scalars is None or not problem.values.get(scalars[1]):
        return None
    return scalars[1]


def is_read(problem: Problem, operand: str) -> bool:
    """Return whether a call reads the values of an operand."""
    operation = problem.operation
    if operand not in operation.writes or operand in operation.caller_provided:
        return True
    return beta_of(problem, operand) is not None
