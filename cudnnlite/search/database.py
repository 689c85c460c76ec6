"""The database that comes along: choices for layers of well-known networks, as JSON.

A file is for one minor version of cuDNN and one architecture.  It was recorded on a GPU by
`cudnnlite cache record`.  A choice is used for calls without an algorithm, if no tuner has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cudnnlite._raw import enums
from cudnnlite.arguments import path_of, refused_as, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.device import Device
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError, TuningCacheError
from cudnnlite.files import read_file
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.problems.problem import SCALARS, Problem
from cudnnlite.problems.results import DATABASE, AlgorithmResult, ConvolutionResult
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.warn import log

# "off": no database; otherwise the folder of the files that were installed.
VARIABLE = "CUDNNLITE_DATABASE"
FORMAT = 2  # in 1, the names of families said less
OFF = "off"
SHIPPED = Path(__file__).parent / "databases"
# The errors of reading a row that is none.
_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
_DIGITS = 16  # of the hash of a problem: no two of a million problems have the same
# A row of a file: algorithm, math type, workspace, whether it is deterministic, error, layout.
Row = list[Any]


@dataclass
class Database:
    """The choices for one architecture and one minor version of cuDNN.

    `families` has the rows by the family of the problem, and then by its digest.
    """

    gpu: str
    compute_capability: str
    cudnn: str
    cudnnlite: str = ""
    families: dict[str, dict[str, Row]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.families.values()))

    def find(self, problem: Problem) -> AlgorithmResult | None:
        """Return the choice for a problem, or None."""
        family = self.families.get(family_of(problem))
        row = None if family is None else family.get(digest_of(problem))
        return None if row is None else row_from_plain(row)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of problems that have rows; others need not be looked up."""
        return frozenset(family.partition(" ")[0] for family in self.families)

    def is_for(self, compute_capability: str, cudnn: str) -> bool:
        """Return whether it is for GPUs of an architecture with a minor version of cuDNN."""
        return (self.compute_capability, self.cudnn) == (compute_capability, cudnn)

    def put(self, problem: Problem, choice: AlgorithmResult) -> None:
        """Set the choice for a problem."""
        vars(self).pop("kinds", None)
        self.families.setdefault(family_of(problem), {})[digest_of(problem)] = row_to_plain(choice)

    def to_json(self) -> str:
        """Return the text of a file; each row has a line."""
        head = {"format": FORMAT, **{name: getattr(self, name) for name in _FACTS}}
        families = []
        for name, rows in sorted(self.families.items()):
            lines = ",\n".join(
                f"{json.dumps(digest)}:{json.dumps(row, separators=(',', ':'))}"
                for digest, row in sorted(rows.items())
            )
            families.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        return f'{json.dumps(head)[:-1]},\n"families": {{{", ".join(families)}}}}}\n'

    @classmethod
    def from_json(cls, text: str, source: object) -> Database:
        """Return the database in a text.

        If it is none, ArgumentError, which names the source and says what is wrong.
        """
        with refused_as(ArgumentError, f"{source} is no database of cudnnlite", ArgumentError):
            plain = _object_from_json(text)
            _refuse_other_format(plain)
            facts = {name: _text_of(plain, name) for name in _FACTS}
            return cls(**facts, families=_families_of(plain))


_FACTS = ("gpu", "compute_capability", "cudnn", "cudnnlite")


def _object_from_json(text: str) -> dict[str, Any]:
    with refused_as(ArgumentError, "it is no JSON", ValueError, RecursionError):
        plain = json.loads(text)
    return _as_object(plain, "it")


def _as_object(plain: Any, description: str) -> dict[str, Any]:
    """Return a value of JSON that is an object; ArgumentError for any other."""
    if not isinstance(plain, dict):
        raise ArgumentError(f"{description} is no object of JSON")
    return plain


def _refuse_other_format(plain: dict[str, Any]) -> None:
    number = _field(plain, "format")
    if number != FORMAT:
        raise ArgumentError(f"it has format {shown(number)}; this cudnnlite reads {FORMAT}")


def _field(plain: dict[str, Any], name: str) -> Any:
    if name not in plain:
        raise ArgumentError(f'it has no field "{name}"')
    return plain[name]


def _text_of(plain: dict[str, Any], name: str) -> str:
    value = _field(plain, name)
    if not isinstance(value, str):
        raise ArgumentError(f'its field "{name}" is no text, but {shown(value)}')
    return value


def _families_of(plain: dict[str, Any]) -> dict[str, dict[str, Row]]:
    """Return the rows by family and digest; ArgumentError if one is no row."""
    families = _as_object(_field(plain, "families"), 'its field "families"')
    for family, rows in families.items():
        for digest, row in _as_object(rows, f"its family {shown(family)}").items():
            try:
                _values_of(row)
            except _MISTAKES as error:
                where = f"its row {shown(digest)} of {shown(family)}"
                raise ArgumentError(f"{where} is no choice") from error
    return families


def row_to_plain(choice: AlgorithmResult) -> Row:
    """Return a choice as a row of a file."""
    algorithm: Any = choice.algorithm
    if isinstance(algorithm, Engine):
        knobs = {str(knob): value for knob, value in algorithm.choices}
        plain: Any = [algorithm.index, knobs]
    else:
        plain = f"{type(algorithm).__name__}.{algorithm.name}"
    error = None if choice.error is None else float(f"{choice.error:.1e}")
    return [
        plain,
        choice.math_type.name,
        choice.workspace,
        choice.deterministic,
        error,
        choice.layout,
    ]


def row_from_plain(row: Row) -> AlgorithmResult:
    """Return the choice of a row."""
    values = _values_of(row)
    kind = ConvolutionResult if "layout" in values else AlgorithmResult
    return kind(**values)


def _values_of(row: Row) -> dict[str, Any]:
    """Return the fields of a row's choice; one of `_MISTAKES` if it is no row."""
    plain, math_type, workspace, deterministic, error, layout = row
    if isinstance(plain, str):
        name, _, member = plain.partition(".")
        algorithm: Any = getattr(enums, name)[member]
    else:
        index, knobs = plain
        algorithm = _engine(index, **knobs)
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "math_type": MathType[math_type],
        "workspace": int(workspace),
        "deterministic": deterministic,
        "error": error,
        "source": DATABASE,
    }
    if layout:
        values["layout"] = str(layout)
    return values


# `typed`, because a row with true or 1.0 for a number is refused.
@lru_cache(maxsize=1024, typed=True)
def _engine(index: int, /, **knobs: int) -> Engine:
    """Return the engine of a row; most rows of a file have one that another row has, too."""
    return Engine(index, {int(knob): value for knob, value in knobs.items()})


def digest_of(problem: Problem) -> str:
    """Return the hash of all that defines a problem, except its scalars.

    In half precision, DEFAULT and TENSOR_OP are hashed alike, because they have the same choice.
    """
    import hashlib  # takes 3 ms

    plain = problem.to_plain()
    if not isinstance(problem, GraphProblem):
        plain = {name: value for name, value in plain.items() if name not in SCALARS}
        if "conv" in plain:
            plain["conv"] = {**plain["conv"], "math_type": _math_type_of(problem)}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def family_of(problem: Problem) -> str:
    """Return the name of the problems that are likely to have the same choice.

    They have the same kind and data type.  Graphs have operations of the same kinds; others have the
    same arithmetic, and convolutions the same order of channels.  Filters are of the same kind.
    """
    parts = [problem.kind, dtype_of(problem).name]
    if isinstance(problem, GraphProblem):
        parts.append("+".join(sorted({node.kind for node in problem.graph.nodes})))
        parts += _kinds_of_filters(problem.graph)
        return " ".join(parts)
    parts.append(_math_type_of(problem))
    if problem.operation.algorithms is not None:
        first = as_tensor(problem.values[problem.operation.reads[0]])
        parts.append("channels last" if first.is_channels_last else "channels first")
        (name,) = problem.operation.filters
        shape = problem.values[name].shape
        parts.append(_kind_of_filter(problem.conv.groups * shape[1], shape))
    return " ".join(parts)


def _kinds_of_filters(graph: GraphData) -> list[str]:
    """Return the kinds of the filters of a graph's convolutions, each once."""
    kinds = []
    for node in graph.nodes:
        if node.kind.startswith("CONVOLUTION"):
            tensors = {name: graph.tensors[number] for name, (number,) in node.reads + node.writes}
            images = tensors["dx" if "dx" in tensors else "x"]
            filters = tensors["dw" if "dw" in tensors else "w"]
            kinds.append(_kind_of_filter(images.shape[1], filters.shape))
    return list(dict.fromkeys(kinds))


def _kind_of_filter(image_channels: int, shape: Sequence[int]) -> str:
    """Return whether a convolution is dense, grouped or depthwise, and whether its filter is 1x1.

    The fastest engines for depthwise convolutions take a thousand times too long for dense ones.
    """
    _, channels, *extents = shape
    groups = "dense"
    if image_channels > channels:
        groups = "depthwise" if channels == 1 else "grouped"
    is_point = all(extent == 1 for extent in extents)
    return f"{groups} 1x1" if is_point else groups


def _math_type_of(problem: Problem) -> str:
    """Return the name of a problem's math type; in half precision DEFAULT is TENSOR_OP."""
    math_type = problem.math_type
    is_half = dtype_of(problem) in (DataType.HALF, DataType.BFLOAT16)
    if math_type == MathType.DEFAULT and is_half:
        math_type = MathType.TENSOR_OP
    return str(math_type.name)


def current_setting() -> str:
    """Return the value of `CUDNNLITE_DATABASE`; empty if it is not set."""
    return os.environ.get(VARIABLE, "")


def parse_setting(setting: str) -> Path | None:
    """Return the folder of the installed files; None if the database is off.

    `setting` is the value of `CUDNNLITE_DATABASE`, as `current_setting` returns it; ``~`` becomes
    the home folder.  ArgumentError if it is not a path, such as that of the home of an unknown user.
    """
    if setting.lower() == OFF:
        return None
    if setting:
        return path_of(setting, VARIABLE, "the path of a folder")
    import platformdirs

    return platformdirs.user_data_path("cudnnlite", appauthor=False) / "databases"


def dtype_of(problem: Problem) -> DataType:
    """Return the data type of a problem's first operand, or of its network."""
    first: Any = next(spec for spec in problem.values.values() if hasattr(spec, "dtype"))
    dtype: DataType = first.dtype
    return dtype


def version_of(number: int) -> str:
    """Return the minor version of cuDNN: "9.19" for 91900."""
    return f"{number // 10000}.{number // 100 % 100}"


def database_of(device: Device) -> Database | None:
    """Return the database for a device; None if there is none, or if it is off.

    There is none for the emulated device.
    """
    if not device.has_real_timing:
        return None
    reader: Any = _read  # a protocol does not say that devices have a hash
    database: Database | None = reader(device, current_setting())
    return database


def find_choice(
    device: Device,
    problem: Problem,
    limit: int | None = None,
    interface: str | None = None,
) -> AlgorithmResult | None:
    """Return the database's choice for a problem, or None.

    None, too, if the choice needs more than `limit` bytes of workspace, or another interface, or is
    less exact than the problem allows.
    """
    database = database_of(device)
    choice = None if database is None else database.find(problem)
    if choice is None:
        return None
    if not isinstance(problem, GraphProblem):
        allowed = allowed_math_types(problem.math_type, dtype_of(problem))
        if choice.math_type not in allowed:
            reason = f"allowed: {', '.join(map(str, allowed))}"
            log.info("%s: the database's %s is passed over; %s", problem, choice, reason)
            return None
    if limit is not None and choice.workspace > limit:
        return None
    own_interface = "graph" if isinstance(choice.algorithm, Engine) else "descriptor"
    if interface not in (None, own_interface):
        return None
    return choice


@lru_cache(maxsize=8)
def _read(device: Device, setting: str) -> Database | None:
    """Return all rows for a device: those of its own model count more than those of others."""
    try:
        folder = parse_setting(setting)
    except ArgumentError as error:
        log.warning("the database is not used: %s", error)
        return None
    if folder is None:
        return None
    facts = device.facts()
    if not facts.compute_capability:
        return None
    version = version_of(int(device.api.cudnnGetVersion()))
    databases = [
        database
        for path in database_files(folder)
        for database in _usable(path, facts.compute_capability, version)
    ]
    databases.sort(key=lambda database: database.gpu == facts.name)
    families = merged_families(databases)
    merged = Database(facts.name, facts.compute_capability, version, families=families)
    return merged if len(merged) else None


def merged_families(databases: Iterable[Database]) -> dict[str, dict[str, Row]]:
    """Return the rows of several databases; for a problem that several have, those of the last."""
    families: dict[str, dict[str, Row]] = {}
    for database in databases:
        for family, rows in database.families.items():
            families.setdefault(family, {}).update(rows)
    return families


def database_files(folder: Path) -> list[Path]:
    """Return the files that come along, and then those that were installed."""
    files: list[Path] = []
    for place in (SHIPPED, folder):
        with suppress(OSError):
            files += sorted(place.glob("*.json"))
    return files


def read_database(path: Path) -> Database:
    """Return the database in a file; TuningCacheError without a file, ArgumentError for another."""
    with refused_as(TuningCacheError, path):
        data = read_file(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no database of cudnnlite: it is no text") from error
    return Database.from_json(text, path)


def _usable(path: Path, compute_capability: str, version: str) -> list[Database]:
    """Return the database in a file, if it is of this architecture and version of cuDNN."""
    try:
        database = read_database(path)
    except (TuningCacheError, ArgumentError) as error:
        log.warning("a database is not used: %s", error)
        return []
    return [database] if database.is_for(compute_capability, version) else []


def file_name_of(database: Database) -> str:
    """Return the name of a database's file."""
    gpu = "".join(character if character.isalnum() else "-" for character in database.gpu.lower())
    return f"cudnn-{database.cudnn}-{database.compute_capability}-{gpu}.json"
