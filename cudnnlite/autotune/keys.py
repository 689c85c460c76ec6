"""`TuningKey`: what a tuning is remembered under: everything that the choice depends on, in one canonical text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.errors import ArgumentError
from cudnnlite.kept import kept
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
        check_types(self)

    @property
    def is_emulated(self) -> bool:
        """Whether its times say nothing about a GPU."""
        return self.kind != "cuda"


@dataclass(frozen=True)
class TuningKey:
    """The key of a tuning; equal and hashable by its text, which is canonical JSON."""

    text: str

    @classmethod
    def of(cls, parts: Any) -> TuningKey:
        """Return the key that has these parts; TypeError if JSON cannot hold them."""
        # what is equal is written in one way: 1.0 and -0.0 are the integers 1 and 0, a tuple is a list
        plain = json.loads(json.dumps(parts), parse_float=_number)
        return cls(json.dumps(plain, sort_keys=True, separators=(",", ":")))

    @kept
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @kept
    def plain(self) -> dict[str, Any]:
        """The parts by name."""
        return dict(json.loads(self.text))

    @property
    def kind(self) -> str:
        """The kind of problem: its operation's name."""
        return str(self.plain["problem"]["kind"])

    @property
    def problem(self) -> Problem:
        """The problem; ArgumentError where this version of cudnnlite has no such problem."""
        return problem_from_plain(self.plain["problem"])

    @property
    def device(self) -> DeviceIdentity:
        """What was measured on."""
        return DeviceIdentity(**self.plain["device"])


def make_key(
    problem: Problem, alignments: Mapping[str, int], policy: TuningPolicy, environment: DeviceIdentity
) -> TuningKey:
    """Return the key of a tuning: the same for equal arguments, and another one if any field of any of them differs.

    `alignments` says what each operand's address is a multiple of, in bytes: powers of two, because kernels that load many
    bytes at once want 16; ArgumentError if one is none.
    """
    for name, value in alignments.items():
        if type(name) is not str or type(value) is not int or value < 1 or value & (value - 1):
            raise ArgumentError(f"alignments[{name!r}]={value!r}; allowed: a power of two, in bytes")
    parts = {"schema": SCHEMA, "problem": problem.to_plain(), "alignments": dict(alignments)}
    return TuningKey.of(parts | {"policy": policy.to_plain(), "device": asdict(environment)})


def check_types(record: Any) -> None:
    """Raise ArgumentError unless every field of a dataclass is of the type that it is declared with."""
    for item in fields(record):
        value = getattr(record, item.name)
        if type(value).__name__ != str(item.type).partition("[")[0]:
            raise ArgumentError(f"{item.name}={value!r} is not of type {item.type}")


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value
