"""`TuningEntry`: the result of one tuning, its `TuningKey`, and the JSON of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cudnnlite import AlgorithmResult, AlgorithmTable
from cudnnlite._raw import enums
from cudnnlite._raw.cenum import CEnum
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.device import Device, DeviceFacts
from cudnnlite.errors import ArgumentError, TuningCacheError
from cudnnlite.operations.graph.graph import any_problem_from_plain
from cudnnlite.problems.roofline import Peaks
from cudnnlite.problems.work import work_of
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.types import Engine, Problem
from cudnnlite.workbench.tuning.policy import TuningPolicy, with_defaults

# The version of the keys. It changes when a part of a key gets another meaning, for instance when a
# field of the policy gets another default. Then no old entry is found.
SCHEMA = 1
# The version of the JSON. It changes when the JSON has something that an older version does not
# understand, such as a new field of a row. Then an older version leaves the file alone, and does
# not treat it as damaged. Files of lower formats are damaged ones. A new field of the policy
# changes neither version.
FORMAT = 4
# The fields of a row that are not written: they belong to a choice, not to the candidate.
LEFT_OUT = ("passed_over", "source", "conversions")

_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class DeviceIdentity:
    """The device and the versions that a time was measured with.

    The names and versions are those that the device reports.  `cudnn` is 92800 for 9.28.0, and
    `kind` is that of `Device.kind`.
    """

    gpu: str
    compute_capability: str
    driver: str
    cudnn: int
    kind: str = "cuda"

    def __post_init__(self) -> None:
        _check_types(self)

    @classmethod
    def of(cls, device: Device) -> DeviceIdentity:
        """Return the identity of a device."""
        facts, version = device.facts(), int(device.api.cudnnGetVersion())
        return cls(facts.name, facts.compute_capability, facts.driver, version, device.kind)

    def is_like(self, gpu: DeviceFacts) -> bool:
        """Return whether a GPU is of this kind, whatever its driver."""
        return (self.gpu, self.compute_capability) == (gpu.name, gpu.compute_capability)

    @property
    def is_emulated(self) -> bool:
        """Whether its times say nothing about a GPU."""
        return self.kind != "cuda"


@dataclass(frozen=True)
class TuningKey:
    """The key of a saved tuning: everything that the choice depends on, as canonical JSON."""

    text: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return _sha256(self.text)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The parts by name."""
        return dict(json.loads(self.text))

    @property
    def policy(self) -> dict[str, Any]:
        """The policy with all its fields, as `TuningPolicy.to_plain` returns it."""
        return with_defaults(self.plain["policy"])

    @property
    def problem(self) -> Problem:
        """The problem; ArgumentError if this version of cudnnlite has no such problem."""
        return any_problem_from_plain(self.plain["problem"])

    @property
    def device(self) -> DeviceIdentity:
        """The device that the problem was measured on."""
        return DeviceIdentity(**self.plain["device"])


def make_key(
    problem: Problem, alignments: Mapping[str, int], policy: TuningPolicy, device: DeviceIdentity
) -> TuningKey:
    """Return the key of a tuning.

    Equal arguments have the same key.  If any field of an argument differs, the key differs.

    `alignments` has powers of two, in bytes, that divide the operands' addresses: kernels that load
    many bytes at once need 16.  Operands that are not listed have the allocator's alignment.
    ArgumentError if a value is not an alignment.
    """
    for name, value in alignments.items():
        if type(name) is not str or not _is_power_of_two(value):
            raise ArgumentError(
                f"alignments[{name!r}]={value!r}; allowed: a power of two, in bytes"
            )
    aligned = {name: value for name, value in alignments.items() if value < ALLOCATION_ALIGNMENT}
    fields_of_policy = policy.key_fields()
    if policy.layouts is None and not problem.operation.filters:
        # Only operands of a problem with filters are converted.  Without the field the keys of the
        # other problems are the old ones, so that their entries are found.
        del fields_of_policy["layouts"]
    parts = {
        "problem": problem.to_plain(),
        "alignments": aligned,
        "policy": fields_of_policy,
        "device": asdict(device),
    }
    return TuningKey(canonical({"schema": SCHEMA, **parts}))


def _is_power_of_two(value: object) -> bool:
    if type(value) is not int or value < 1:
        return False
    return value & (value - 1) == 0


def canonical(parts: Any) -> str:
    """Return JSON that is the same for equal values.

    1.0 is written as the integer 1, and a tuple as a list.  -0.0 stays, because 0 has no sign.
    """
    plain = json.loads(json.dumps(parts), parse_float=_parse_canonical_number)
    return json.dumps(plain, **_COMPACT)


def _parse_canonical_number(text: str) -> int | float:
    number = float(text)
    if number.is_integer() and text != "-0.0":
        return int(number)
    return number


@dataclass(frozen=True)
class TuningEntry:
    """The saved result of one tuning; ValueError if a value is not allowed.

    `key` has the problem, the policy and the device.  `title` and `timing` are those of the table
    of candidates.  `rows` has all candidates of the table in order, the failed ones too; their
    `passed_over` is not written.  `chosen` is the index of the choice.  `tuned_at` is ISO 8601 in
    UTC to the microsecond, so that texts compare as times do.  `cudnnlite` is the version that
    tuned, and `seconds` the time that it took.
    """

    key: TuningKey
    title: str
    timing: str
    rows: tuple[AlgorithmResult, ...]
    chosen: int
    tuned_at: str
    seconds: float
    cudnnlite: str

    def __post_init__(self) -> None:
        _check_types(self)
        is_row = 0 <= self.chosen < len(self.rows)
        is_finite_time = 0 <= self.seconds < inf
        if not is_row or not is_finite_time:
            values = f"chosen={self.chosen} of {len(self.rows)} rows, seconds={self.seconds}"
            raise ArgumentError(f"{values}; allowed: one of the rows, a finite time")
        utc = datetime.fromisoformat(self.tuned_at).astimezone(timezone.utc)
        object.__setattr__(self, "tuned_at", utc.isoformat(timespec="microseconds"))

    def table(self, memory: int, peaks: Peaks | None = None) -> AlgorithmTable:
        """Return the table that the search returned, with the best candidate first.

        `memory` is the device's memory in bytes, and `peaks` are the device's.
        """
        return AlgorithmTable(
            self.rows,
            title=self.title,
            timing=f"{self.timing}, remembered from {self.tuned_at[:10]}",
            device_memory=memory,
            work=None if peaks is None else work_of(self.key.problem),
            peaks=peaks,
        )

    def to_json(self) -> str:
        """Return the JSON of the entry, with its key as an object and each row on a line.

        ArgumentError if a row cannot be written.
        """
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("key", "rows")
        }
        rows = ",\n ".join(json.dumps(_without_empty(row_to_plain(row))) for row in self.rows)
        head = json.dumps({"format": FORMAT, **values}).removesuffix("}")
        return f'{head},\n"key": {self.key.text},\n"rows": [\n {rows}\n]}}\n'

    @classmethod
    def from_json(cls, text: str | bytes, file: Path) -> TuningEntry:
        """Return the entry in the text of a file, whose name is the digest of the key.

        ArgumentError if the text is not that of an entry; TuningCacheError if a newer version of
        cudnnlite has written it.
        """
        try:
            values = json.loads(text)
            version = values.pop("format")
            if type(version) is int and version > FORMAT:
                raise TuningCacheError(
                    f"{file} is of format {version}, from a newer cudnnlite; this one has {FORMAT}"
                )
            parts = values.pop("key")
            is_named_by_key = _sha256(json.dumps(parts, **_COMPACT)) == file.stem
            if type(version) is not int or version != FORMAT:
                raise ValueError(f"its format is {version!r}, and not {FORMAT}")
            if not is_named_by_key:
                raise ValueError("its key is not that of its name")
            _check_parts(parts)
            rows = values.pop("rows")
            key = TuningKey(json.dumps(parts, **_COMPACT))
            return cls(key=key, rows=tuple(map(row_from_plain, rows)), **values)
        except _MISTAKES as error:
            raise ArgumentError(f"{file} is no entry of a tuning cache ({error})") from error


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Raise one of `_MISTAKES` unless a key has its parts, of the right types."""
    DeviceIdentity(**parts["device"])
    _ = parts["problem"]["kind"]
    _ = {**parts["policy"], **parts["alignments"]}


def _without_empty(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plain row that are not empty.  Empty fields need not be written."""
    return {
        name: value for name, value in plain.items() if name not in _EMPTY or value != _EMPTY[name]
    }


def row_to_plain(row: AlgorithmResult) -> dict[str, Any]:
    """Return every field of a row but `passed_over`; ArgumentError if a value has a wrong type.

    An enum's value is the name of its member, for `algorithm` with the enum's name in front
    ("RNNAlgo.STANDARD").  An engine is its number and its knobs.  JSON has no numbers that are not
    finite: they are the strings "nan", "inf" and "-inf".
    """
    plain: dict[str, Any] = {}
    for name, kinds in _FIELDS.items():
        value = getattr(row, name)
        try:
            if isinstance(value, Engine):
                plain[name] = value.to_plain()
            elif isinstance(value, CEnum):
                member = value.name
                if kinds == _ANY_ALGORITHM:
                    member = f"{type(value).__name__}.{member}"
                plain[name] = member
                can_be_read = _parse(kinds, member) is value
                if not can_be_read:
                    raise TypeError("not a member of cuDNN's enums")
            else:
                if type(value) not in kinds:
                    value = _parse(kinds, value)
                if type(value) is float and not isfinite(value):
                    value = str(value)
                plain[name] = value
        except _MISTAKES as error:
            raise ArgumentError(f"{name}={value!r} of a row cannot be written: {error}") from error
    return plain


def row_from_plain(plain: Any) -> AlgorithmResult:
    """Return the row that `row_to_plain` wrote; ArgumentError if it wrote no such thing.

    A field that is missing has its default, because empty fields are not written.  An unknown field
    is refused, because the row cannot be understood without it.
    """
    values: dict[str, Any] = {}
    name = value = None
    try:
        for name, value in plain.items():
            values[name] = _value_of(name, value)
        return AlgorithmResult(**values)
    except _MISTAKES as error:
        raise ArgumentError(
            f"{plain!r} is not a row; {name}={value!r} was read last: {error!r}"
        ) from error


def _value_of(name: str, plain: Any) -> Any:
    """Return the value of a row's field from its form in JSON."""
    kinds = _FIELDS[name]
    if type(plain) in kinds:
        return plain
    if isinstance(plain, dict) and kinds == _ANY_ALGORITHM:
        knobs = plain["knobs"]
        _refuse_nested(plain["engine"], *knobs.values())
        return _parse((Engine,), plain["engine"], *knobs.items())
    _refuse_nested(plain)
    return _parse(kinds, plain)


def _refuse_nested(*values: Any) -> None:
    """Raise TypeError for values that have no hash, which the cache of `_parse` needs."""
    if any(isinstance(value, (list, dict)) for value in values):
        raise TypeError("a list or an object where a value belongs")


# A model had 1,003 rows with 107 engines. Without the cache this function took half of the time of
# reading them.
@lru_cache(maxsize=2048, typed=True)
def _parse(kinds: tuple[Any, ...], value: Any, *knobs: tuple[str, int]) -> Any:
    """Return a value of JSON or NumPy as one of a field's types, `kinds`.

    An engine has its number as `value`, and its knobs as `knobs`.
    """
    kind = kinds[0]
    if kind is Engine:
        return Engine.from_plain({"engine": value, "knobs": dict(knobs)})
    if kind is Any:  # The text begins with the name of the enum.
        name, _, value = value.partition(".")
        kind = getattr(enums, name)
    if issubclass(kind, CEnum):
        # UNKNOWN_17 is the member 17, which may have a name in this version of cuDNN.
        unknown = re.fullmatch(r"UNKNOWN_(-?\d+)", value)
        if unknown:
            return kind(int(unknown[1]))
        return kind[value]
    if hasattr(value, "item"):
        value = value.item()
    if kind is float:
        is_not_finite = value in ("nan", "inf", "-inf")
        if is_not_finite or type(value) is int:
            return float(value)
    if type(value) in kinds:
        return value
    raise TypeError(f"not of type {kind.__name__}")


_ANY_ALGORITHM = (Any,)  # the types of the field `algorithm`
# The types of each field.
_FIELDS = {
    name: get_args(hint) or (hint,)
    for name, hint in get_type_hints(AlgorithmResult).items()
    if name not in LEFT_OUT
}
_EMPTY = {
    item.name: item.default for item in fields(AlgorithmResult) if item.default in (None, "", False)
}
_COMPACT: dict[str, Any] = {"sort_keys": True, "separators": (",", ":")}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_types(record: Any) -> None:
    """Raise ArgumentError unless every field of a dataclass has its declared type."""
    for item in fields(record):
        value = getattr(record, item.name)
        if type(value).__name__ != str(item.type).partition("[")[0]:
            raise ArgumentError(f"{item.name}={value!r} is not of type {item.type}")
