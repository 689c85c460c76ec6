"""`TuningKey`: what a tuning is remembered under: everything that the choice depends on, in one canonical text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem import Problem, problem_from_plain

SCHEMA = 1  # of the keys: where a part of them gets another meaning, they get another number, and nothing old is found


@dataclass(frozen=True)
class DeviceIdentity:
    """What a time was measured on and with: on anything else it may be another.

    Names and versions as the device tells them; `cudnn` is 92800 for 9.28.0, `kind` as in `Device.kind`.
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
        return asdict(self)


@dataclass(frozen=True)
class TuningKey:
    """The key of a tuning, as `make_key` writes it; equal and hashable by its text, which is canonical JSON."""

    text: str

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> TuningKey:
        """Return the key that has these parts; TypeError if JSON cannot hold them."""
        return cls(json.dumps(_canonical(parts), sort_keys=True, separators=(",", ":")))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The parts by name; ArgumentError where the text is no key."""
        try:
            parts = json.loads(self.text)
            if isinstance(parts["problem"]["kind"], str) and isinstance(parts["device"], dict):
                return dict(parts)
        except (ValueError, TypeError, LookupError, RecursionError):
            pass
        raise ArgumentError(f"key={self.text[:200]!r} is no key of a tuning")

    @property
    def kind(self) -> str:
        """The kind of problem, a key of `problem.KINDS`."""
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
    problem: Problem, alignments: Mapping[str, int], policy: TuningPolicy, environment: DeviceIdentity
) -> TuningKey:
    """Return the key of a tuning: the same for equal arguments, and another one if any field of any of them differs.

    `alignments` says what each operand's address is a multiple of, in bytes: powers of two, because kernels that load many
    bytes at once want 16.  ArgumentError if one is none, or if a part of the policy has no place in JSON.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(f"problem={problem!r} is not a problem")
    if not isinstance(environment, DeviceIdentity):
        raise ArgumentError(f"environment={environment!r} is not a DeviceIdentity")
    for name, value in alignments.items():
        if type(value) is not int or value < 1 or value & (value - 1):
            raise ArgumentError(f"alignments[{name!r}]={value!r}; allowed: a power of two, in bytes")
    parts = {"schema": SCHEMA, "problem": problem.to_plain(), "alignments": dict(alignments)}
    try:
        return TuningKey.of(parts | {"policy": policy.to_plain(), "device": environment.to_plain()})
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
