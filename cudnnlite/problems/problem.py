"""`Problem`: what an operation is asked to do, as a value that can be listed, saved and looked up.

A problem holds specs and no arrays.  It is what a plan is made for, what a search is for, and what
a choice is remembered for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from functools import lru_cache
from inspect import signature
from types import MappingProxyType
from typing import Any

from cudnnlite.arguments import instance_of, real_number
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import refuse_overflow
from cudnnlite.enums import DataType, MathType, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.frozen import FrozenSpec, to_plain

SCALARS = {"alpha": 1.0, "beta": 0.0}


class Problem:
    """An operation with its specs, options and scalars: a frozen value, equal by all of them.

    Parameters
    ----------
    operation : Operation
        What is done.
    **values
        What `Operation.fields` names; each is an attribute too.  What is written may be left out,
        as the scalars may.

    Raises
    ------
    ArgumentError
        A value of a wrong type, or values that do not fit together; the message names the argument.
    """

    kind: str
    operation: Operation
    values: Mapping[str, Any]

    def __init__(self, operation: Operation, **values: Any) -> None:
        instance_of(operation, Operation, "operation")
        unknown = set(values) - set(operation.fields)
        missing = {*operation.reads, *operation.options} - set(values)
        if unknown or missing:
            raise TypeError(
                f"{operation.name} has the fields {', '.join(operation.fields)}; "
                f"given: {', '.join(values)}"
            )
        specs = {name: values[name] for name in operation.reads}
        written = {name: values[name] for name in operation.writes if values.get(name) is not None}
        for name, spec in (specs | written).items():
            instance_of(spec, FilterSpec if name in operation.filters else TensorSpec, name)
        options = {
            name: parse_option(values[name], name, kind) for name, kind in operation.options.items()
        }
        scalars = {
            name: real_number(values.get(name, SCALARS[name]), name) for name in operation.scalars
        }
        if operation.writes:
            expected = operation.expected(specs | written | options)
            for name, spec in written.items():
                check_shape(operation.argument(name), spec, expected[name])
                if name not in operation.filters and spec.overlaps_itself:
                    raise ArgumentError(
                        f"{operation.argument(name)}={spec}: "
                        "its values overlap each other in memory"
                    )
            written = expected | written
            operation.check_dtypes(specs | written)
            operation.check(specs | written, options | scalars)
            first = next(iter((specs | written).values()))
            # C takes scalars as double for double operands, as float for all others.
            scalar_dtype = DataType.DOUBLE if first.dtype == DataType.DOUBLE else DataType.FLOAT
            for name, value in (options | scalars).items():
                if type(value) is float:
                    refuse_overflow(value, scalar_dtype, name)
        options = dict(operation.complete(specs | written, options))
        if operation.writes:
            operation.check_without_descriptor(specs | written | options)
        everything = specs | options | written | scalars
        self._thaw(operation, {name: everything[name] for name in operation.fields})

    def _thaw(self, operation: Operation, values: Mapping[str, Any]) -> None:
        vars(self).update(
            values, operation=operation, values=MappingProxyType(dict(values)), kind=operation.name
        )
        vars(self)["_hash"] = hash((operation.name, *values.values()))

    @property
    def specs(self) -> dict[str, Any]:
        """The specs of the operands, what is read first."""
        return {name: self.values[name] for name in (*self.operation.reads, *self.operation.writes)}

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {name: self.values[name] for name in self.operation.options}

    @property
    def flops(self) -> int:
        """The multiplications and additions of the usual way, padding counted."""
        return self.operation.flops(self)

    @property
    def math_type(self) -> MathType:
        """The math type that the user asked for: what bounds the choice."""
        return self.operation.math_type(self)

    def to_plain(self) -> dict[str, Any]:
        """Return every field as JSON can hold it, under 'kind' the kind of problem."""
        return {"kind": self.kind, **{name: to_plain(value) for name, value in self.values.items()}}

    def replace(self, **changes: Any) -> Any:
        """Return a problem with some fields changed."""
        values = {**self.values, **changes}
        return Problem(self.operation, **values)

    def __getattr__(self, name: str) -> Any:  # for type checkers; the values are attributes
        raise AttributeError(f"a {self.__class__.__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(
            f"a {type(self).__name__} does not change; {name!r} cannot be set"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return self.operation is other.operation and tuple(self.values.values()) == tuple(
            other.values.values()
        )

    def __hash__(self) -> int:
        return int(vars(self)["_hash"])

    def __reduce__(self) -> Any:
        return _thawed, (self.operation, dict(self.values))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"<problem {self.kind}({values})>"

    @cached_property
    def terms(self) -> str:
        """The specs and options in words: 'x by w to y, conv'."""
        specs, options = self.specs, "".join(f", {option}" for option in self.options.values())
        ends = [
            [str(specs[name]) for name in names]
            for names in (self.operation.reads, self.operation.writes)
        ]
        return " to ".join(" by ".join(names) for names in ends) + options

    def __str__(self) -> str:
        return self.operation.title(self)


def _thawed(operation: Operation, values: Mapping[str, Any]) -> Problem:
    problem = Problem.__new__(Problem)
    problem._thaw(operation, values)
    return problem


def parse_option(value: Any, argument: str, kind: Any) -> Any:
    """Return an option, an enum's by its name too; ArgumentError if it is none."""
    if hasattr(kind, "__members__"):
        return parse_enum(kind, value, argument)
    if isinstance(value, kind) and (not isinstance(value, bool) or kind is bool):
        return value
    if kind is float:
        return real_number(value, argument)
    if isinstance(value, (str, getattr(kind, "named_by", str))) and hasattr(kind, "named_by"):
        return _named(kind, value, argument)
    hint = "; pass its .spec" if isinstance(getattr(value, "spec", None), kind) else ""
    if not hint and issubclass(kind, FrozenSpec):
        hint = f": dnn.{kind.__name__}({', '.join([*signature(kind).parameters][:3])}, ...)"
    return instance_of(value, kind, argument, hint)


@lru_cache(maxsize=64, typed=True)
def _named(kind: Any, value: Any, argument: str) -> Any:
    return kind(parse_enum(kind.named_by, value, argument))


def check_shape(argument: str, out: TensorSpec, expected: TensorSpec) -> None:
    """Raise ArgumentError unless what is written has the shape of the result."""
    if out.shape != expected.shape:
        raise ArgumentError(f"{argument} has shape {out.shape}; the result has {expected.shape}")
