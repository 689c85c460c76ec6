"""`TuningKey`: what a tuning is remembered under: everything that the choice depends on, in one canonical text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem import Problem, problem_from_plain

SCHEMA = 1  # of the keys: where a part of them gets another meaning, they get another number, and nothing old is found


class HasPlain(Protocol):
    """What can write itself as JSON can hold it: a `TuningPolicy`."""

    def to_plain(self) -> dict[str, Any]:
        """Return every field."""


@dataclass(frozen=True)
class DeviceIdentity:
    """What a time was measured on and with: on anything else it may be another.

    Parameters
    ----------
    gpu : str
        The GPU's name.
    compute_capability : str
        Such as "9.0".
    driver : str
        The driver's version.
    cudnn : int
        The version of libcudnn: 92800 is 9.28.0.
    kind : str
        "cuda" or "emulated", as in `Device.kind`.

    Raises
    ------
    ArgumentError
        A value of another type.
    """

    gpu: str
    compute_capability: str
    driver: str
    cudnn: int
    kind: str = "cuda"

    def __post_init__(self) -> None:
        for item in fields(self):
            value, wanted = getattr(self, item.name), int if item.name == "cudnn" else str
            if type(value) is not wanted:
                raise ArgumentError(f"{item.name}={value!r} is not of type {wanted.__name__}")

    @property
    def is_emulated(self) -> bool:
        """Whether its times say nothing about a GPU."""
        return self.kind != "cuda"

    def to_plain(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class TuningKey:
    """The key of a tuning; equal and hashable by its text.

    Parameters
    ----------
    text : str
        Canonical JSON (keys sorted, no spaces), with the parts 'problem', 'alignments', 'policy', 'device' and 'schema', as
        `make_key` writes it.  A NaN in it is written as Python does.
    """

    text: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The parts by name.

        Raises
        ------
        ArgumentError
            The text is no key.
        """
        try:
            parts = json.loads(self.text)
            if isinstance(parts["problem"]["kind"], str) and isinstance(parts["device"], dict):
                return dict(parts)
        except (ValueError, TypeError, LookupError, RecursionError):
            pass
        raise ArgumentError(f"key={self.text[:200]!r} is no key of a tuning")

    @property
    def kind(self) -> str:
        """The kind of problem, a key of `problems.KINDS`."""
        return str(self.plain["problem"]["kind"])

    @property
    def problem(self) -> Problem:
        """The problem; ArgumentError where this version of cudnnlite has no such problem."""
        return problem_from_plain(self.plain["problem"])

    @property
    def device(self) -> DeviceIdentity:
        """What was measured on; ArgumentError where the text lacks a part of it."""
        try:
            return DeviceIdentity(**self.plain["device"])
        except TypeError as error:
            raise ArgumentError(f"device={self.plain['device']!r} is no device identity: {error}") from error


def make_key(
    problem: Problem, alignments: Mapping[str, int], policy: HasPlain, environment: DeviceIdentity
) -> TuningKey:
    """Return the key of a tuning.

    Parameters
    ----------
    problem : Problem
        What is tuned.
    alignments : mapping of str to int
        What each operand's address is a multiple of, in bytes: powers of two, because kernels that load many bytes at once
        want 16.  An operand that is not given is left out.
    policy : TuningPolicy
        What the choice is bound to.
    environment : DeviceIdentity
        What is measured on.

    Returns
    -------
    TuningKey
        The same for equal arguments, and another one if any field of any of them differs.

    Raises
    ------
    ArgumentError
        An alignment is no power of two, or a part of the policy has no place in JSON.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(f"problem={problem!r} is not a problem")
    if not isinstance(environment, DeviceIdentity):
        raise ArgumentError(f"environment={environment!r} is not a DeviceIdentity")
    for name, value in alignments.items():
        if type(value) is not int or value < 1 or value & (value - 1):
            raise ArgumentError(f"alignments[{name!r}]={value!r}; allowed: a power of two, in bytes")
    parts = {
        "schema": SCHEMA,
        "problem": problem.to_plain(),
        "alignments": dict(alignments),
        "policy": policy.to_plain(),
        "device": environment.to_plain(),
    }
    try:
        return TuningKey(json.dumps(_canonical(parts), sort_keys=True, separators=(",", ":")))
    except TypeError as error:
        raise ArgumentError(f"the key of {problem} cannot be written: {error}") from error


def _canonical(value: Any) -> Any:
    """Write what is equal in one way: 1.0 and -0.0 are the integers 1 and 0, a tuple is a list."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):  # JSON would write 1 and "1" alike
                raise TypeError(f"the name {name!r} is not a string")
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value
