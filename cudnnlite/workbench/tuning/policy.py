"""`TuningPolicy`: the conditions for a choice, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Literal

from cudnnlite import AlgorithmResult
from cudnnlite.arguments import instance_of, one_of, sequence, shown
from cudnnlite.enums import (
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    DataType,
    MathType,
    RNNAlgo,
    is_choice,
    parse_math_type,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.selection import Requirements
from cudnnlite.problems.results import parse_max_error, why_not
from cudnnlite.sizes import parse_size
from cudnnlite.specs.frozen import to_plain
from cudnnlite.specs.layout import LAYOUTS, plain_layout
from cudnnlite.specs.math_types import may_be_tf32

OBJECTIVES = ("latency", "device")
SEARCHES = ("heuristics", "engines")
# How algorithms are printed.
_ALGORITHMS = frozenset(
    str(algorithm)
    for kind in (ConvolutionFwdAlgo, ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo, RNNAlgo)
    for algorithm in kind
    if is_choice(algorithm)
)
# From the user's value and the name of the argument, for messages: the value of the field.
Parser = Callable[[Any, str], Any]


def _one_of(*allowed: str | bool | None) -> Parser:
    return lambda value, argument: one_of(value, argument, *allowed)


def _parse_limit(value: Any, argument: str) -> int | str | None:
    """Return a limit in bytes; a percentage stays as it is until the device is known."""
    if value is None:
        return None
    size = parse_size(value, argument, total=1)
    if isinstance(value, str) and "%" in value:
        return value
    return size


def _parse_math_type(value: Any, argument: str) -> MathType | None:
    return None if value is None else parse_math_type(value, argument)


def _parse_layouts(value: Any, argument: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    layouts = sequence(names, argument, "a sequence of 'NCHW', 'NHWC'")
    if all(isinstance(layout, str) for layout in layouts):
        parsed = tuple(map(plain_layout, layouts))
        if all(layout in LAYOUTS for layout in parsed):
            return parsed
    allowed = ", ".join(map(repr, LAYOUTS))
    raise ArgumentError(f"{argument}={shown(names)}; allowed: {allowed}")


def _parse_exclude(value: Any, argument: str) -> tuple[str, ...]:
    """Return the names of algorithms and engines, as they are printed."""
    names = (value,) if isinstance(value, (str, Engine, Enum)) else value
    excluded = sequence(names, argument, "algorithms or engines, or their names: 'engine 7'")
    return tuple(sorted({_excluded_name(item, names, argument) for item in excluded}))


def _excluded_name(item: Any, names: Any, argument: str) -> str:
    """Return the name of an algorithm or an engine as it is printed."""
    if isinstance(item, (str, Engine, Enum)):
        engine = item if isinstance(item, Engine) else Engine.from_text(str(item))
        if engine is not None:
            return str(engine)
        if str(item) in _ALGORITHMS:
            return str(item)
    raise ArgumentError(
        f"{argument}={shown(names)}; allowed: algorithms, engines, and their names, such as "
        "'FFT_TILING', 'engine 7'"
    )


# The function that checks each field.
_PARSERS: dict[str, Parser] = {
    "objective": _one_of(*OBJECTIVES),
    "workspace_limit": _parse_limit,
    "deterministic": _one_of(True, False),
    "max_error": parse_max_error,
    "math_type": _parse_math_type,
    "allow_tf32": _one_of(True, False),
    "layouts": _parse_layouts,
    "interface": _one_of("descriptor", "graph", None),
    "flush_l2": _one_of(True, False),
    "search": _one_of(*SEARCHES),
    "exclude": _parse_exclude,
}


@dataclass(frozen=True)
class TuningPolicy:
    """The conditions for a choice, and how it is measured: a frozen value.

    Parameters
    ----------
    objective : str
        "latency": the least wall time of a call in a series of calls, as in a program: the device's
        time or the host's, whichever is longer.  "device": the least time on the device, for calls
        that are captured into a CUDA graph.  If candidates differ only by noise, the host's time
        decides, then the workspace.
    workspace_limit : int or str, optional
        The maximal workspace: bytes, "64 MiB", or "10%" of the device's memory.
    deterministic : bool
        Only candidates that give the same bits each time, according to cuDNN and in five runs.
    max_error : float, optional
        The largest relative L2 error against float64 sums.
    math_type : MathType or str, optional
        Only candidates of that math type.  The default is what the problem's math type allows.
    allow_tf32 : bool
        False: float32 data is multiplied in true float32 only, whatever the problem's math type
        allows.
    layouts : iterable of str, optional
        Layouts to try besides the operands' own: "NHWC", "NCHW" (for every rank).  The time of the
        conversions counts, and so does their workspace.  By default, both are tried on a GPU whose
        bandwidth is known, unless the conversions alone take longer than the best candidate; ``()``
        tries none.
    interface : str, optional
        "descriptor": only algorithms of the descriptor call.  "graph": only engines of cuDNN's
        backend.  The default is both.
    flush_l2 : bool
        Whether device times are measured with operands that are not in the L2 cache.  Eager calls
        are timed without a flush.
    search : str
        "heuristics": the engines that cuDNN's heuristics name, and all others that need no
        compilation, such as Winograd's engine in true float32.  "engines": in addition, the engines
        that cuDNN compiles at run time and no heuristic names.
    exclude : iterable of algorithms, engines or str
        Candidates that are not chosen: algorithms, engines (without knobs, all configurations of an
        engine), or their names as they are printed: "FFT_TILING", "engine 7".

    Raises
    ------
    ArgumentError
        A value that is not allowed.

    Examples
    --------
    >>> policy = dnn.TuningPolicy(workspace_limit="64 MiB", deterministic=True, allow_tf32=False)
    >>> policy.workspace_limit, policy.objective
    (67108864, 'latency')
    >>> policy.replace(objective="device").objective
    'device'
    """

    # The key of a tuning contains the fields that differ from `_LEFT_OUT`. So a new field makes no
    # cache invalid, and another default of an old field is written into new keys.
    objective: Literal["latency", "device"] = "latency"
    workspace_limit: int | str | None = None
    deterministic: bool = False
    max_error: float | None = None
    math_type: MathType | str | None = None
    allow_tf32: bool = True
    layouts: Iterable[str] | None = None
    interface: Literal["descriptor", "graph"] | None = None
    flush_l2: bool = False
    search: Literal["heuristics", "engines"] = "heuristics"
    exclude: Iterable[Any] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = parse_field(item.name, getattr(self, item.name), item.name)
            object.__setattr__(self, item.name, value)

    def replace(self, **changes: Any) -> TuningPolicy:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @property
    def is_narrow(self) -> bool:
        """Whether it excludes candidates for what is known of them without a measurement."""
        narrowing = (self.workspace_limit, self.math_type, self.layouts, self.interface)
        is_open = all(value is None for value in narrowing) and self.allow_tf32
        return self.deterministic or bool(self.exclude) or not is_open

    def why_not(self, row: AlgorithmResult, dtype: DataType) -> str:
        """Return why a candidate for data of that type is excluded; empty if it is not."""
        algorithm = instance_of(row, AlgorithmResult, "row").algorithm
        names = {str(algorithm)}
        if isinstance(algorithm, Engine):
            names.add(str(Engine(algorithm.index)))
        for name in names.intersection(self.exclude):
            return f"exclude has {name!r}"
        if not self.allow_tf32 and may_be_tf32(row.math_type, dtype):
            return f"{row.math_type} may multiply in TF32, which is not allowed"
        if self.layouts is not None and row.layout:
            names = {name for layout in self.layouts for name in LAYOUTS[layout].values()}
            if row.layout not in names:
                return f"it converts operands to {row.layout}; layouts={self.layouts!r}"
        return why_not(row, None, self.deterministic, self.math_type, None)

    def within(self, limit: int | None, total: int) -> TuningPolicy:
        """Return the policy with its workspace limit in bytes, or with `limit` if that is less.

        `total` is the memory of the device in bytes.
        """
        limits = [] if limit is None else [limit]
        if self.workspace_limit is not None:
            limits.append(parse_size(self.workspace_limit, "workspace_limit", total=total))
        return self.replace(workspace_limit=min(limits, default=None))

    def to_plain(self) -> dict[str, Any]:
        """Return every field as a value for JSON."""
        return {item.name: to_plain(getattr(self, item.name)) for item in fields(self)}

    def key_fields(self) -> dict[str, Any]:
        """Return the fields that are not as in `_LEFT_OUT`, as values for JSON.

        The choice depends on these fields.  The problem is not known here, so fields without an
        effect on its kind are in the result.
        """
        return without(_LEFT_OUT, self.to_plain())


def limit_of(policy: TuningPolicy) -> int | None:
    """Return the workspace limit of a policy that has it in bytes."""
    limit = policy.workspace_limit
    assert limit is None or isinstance(limit, int)
    return limit


def requirements_of(policy: TuningPolicy) -> Requirements:
    """Return the requirements of a policy for the engines of a graph."""
    math_type = MathType.DEFAULT if policy.math_type is None else parse_math_type(policy.math_type)
    if not policy.allow_tf32:
        math_type = MathType.FMA
    return Requirements(math_type, policy.deterministic)


def parse_field(name: str, value: Any, argument: str) -> Any:
    """Return the value of a field of a policy; ArgumentError if it is not allowed.

    `argument` is the name of the argument in the message.
    """
    return _PARSERS[name](value, argument)


# The values that keys leave out: each field's default when it was new.  A later version must not
# change them.
_LEFT_OUT = TuningPolicy(layouts=()).to_plain()


def without(defaults: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plain policy that differ from defaults, or that these do not have."""
    return {
        name: value
        for name, value in plain.items()
        if name not in defaults or value != defaults[name]
    }


def with_defaults(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain policy with the fields that keys leave out."""
    return _LEFT_OUT | dict(plain)
