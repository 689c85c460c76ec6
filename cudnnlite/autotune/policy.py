"""`TuningPolicy`: what is wanted of a choice, and how it is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from cudnnlite.arguments import one_of, real_number, sequence, shown
from cudnnlite.enums import DataType, MathType, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution.algorithms import parse_interface
from cudnnlite.problems.results import AlgorithmResult, parse_max_error, why_not
from cudnnlite.sizes import parse_size
from cudnnlite.specs.frozen import to_plain
from cudnnlite.specs.layout import LAYOUTS
from cudnnlite.specs.math_types import may_be_tf32

OBJECTIVES = ("latency", "device")
SEARCHES = ("heuristics", "engines", "knobs")
NO_KNOBS = (
    "; no knobs searched: no engine of cuDNN's backend runs it"  # where `search` asks for that
)


@dataclass(frozen=True)
class TuningPolicy:
    """What is wanted of a choice, and how it is measured: a frozen value.

    Parameters
    ----------
    objective : str
        "latency": the least wall time of a call among others, as a program makes it: the device's time or the host's,
        whichever is longer.  "device": the least time on the device, for what is captured into a CUDA graph.  Between what the
        noise makes equal the host's time decides, then the workspace.
    workspace_limit : int or str, optional
        The most workspace: bytes, "64 MiB", or "10%" of the device's memory.
    deterministic : bool
        Only candidates that cuDNN says give the same bits each time.
    max_error : float, optional
        The largest relative L2 error against float64 sums.
    math_type : MathType or str, optional
        Only candidates of that math type; what the problem's own math type allows, if not given.
    allow_tf32 : bool
        False: float32 data is multiplied in true float32 only, whatever the problem's math type allows.
    layouts : iterable of str
        Layouts to try beside the operands' own, the conversion counted: "NHWC", "NCHW" (for every rank).
    interface : str, optional
        "descriptor": only algorithms of the descriptor call; "graph": only engines of cuDNN's backend; both, if not given.
    flush_l2 : bool
        Time on the device with operands that are not in the second-level cache; eager calls are timed as they come.
    search : str
        "heuristics": the engines that cuDNN's heuristics name, and those that need no compilation, of which Winograd's in true
        float32 is one that they do not name.  "engines": besides, those that cuDNN compiles first.  "knobs": besides, for
        `search_seconds` a problem, settings of their knobs that no heuristic names; what is found is saved like any other
        choice.  Where no engine runs a problem, an RNN's for instance, there are no knobs: the table's `timing` says so.
    search_seconds : float
        The seconds for knobs.

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

    objective: str = "latency"
    workspace_limit: int | str | None = None
    deterministic: bool = False
    max_error: float | None = None
    math_type: MathType | str | None = None
    allow_tf32: bool = True
    layouts: Iterable[str] = ()
    interface: str | None = None
    flush_l2: bool = False
    search: str = "heuristics"
    search_seconds: float = 10.0

    def __post_init__(self) -> None:
        one_of(self.objective, "objective", *OBJECTIVES)
        one_of(self.search, "search", *SEARCHES)
        seconds = real_number(self.search_seconds, "search_seconds")
        if isinstance(self.search_seconds, bool) or not 0 < seconds < float("inf"):
            raise ArgumentError(
                f"search_seconds={shown(self.search_seconds)}; needed: a number of seconds above 0"
            )
        for name in ("deterministic", "allow_tf32", "flush_l2"):
            one_of(getattr(self, name), name, True, False)
        parse_interface(self.interface)
        if (limit := self.workspace_limit) is not None:
            size = parse_size(
                limit, "workspace_limit", total=1
            )  # of which memory, the device will say
            limit = limit if isinstance(limit, str) and "%" in limit else size
        math_type = None if self.math_type is None else parse_math_type(self.math_type)
        given = (self.layouts,) if isinstance(self.layouts, str) else self.layouts
        layouts = sequence(given, "layouts", "a sequence of 'NCHW', 'NHWC'")
        if not all(isinstance(layout, str) and layout in LAYOUTS for layout in layouts):
            raise ArgumentError(f"layouts={shown(given)}; allowed: {', '.join(map(repr, LAYOUTS))}")
        values = {
            "workspace_limit": limit,
            "max_error": parse_max_error(self.max_error),
            "math_type": math_type,
        }
        for name, value in {**values, "layouts": layouts}.items():
            object.__setattr__(self, name, value)

    def replace(self, **changes: Any) -> TuningPolicy:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def why_not(self, row: AlgorithmResult, dtype: DataType) -> str:
        """Return why a candidate for data of that type is not tried; empty if it is."""
        if not self.allow_tf32 and may_be_tf32(row.math_type, dtype):
            return f"{row.math_type} may multiply in TF32, which is not allowed"
        return why_not(row, None, self.deterministic, self.math_type, None)

    def within(self, limit: int | None, total: int) -> TuningPolicy:
        """Return the policy with its limit in bytes: its own or `limit`, whichever is less; of `total` bytes of memory."""
        own = (
            None
            if self.workspace_limit is None
            else parse_size(self.workspace_limit, "workspace_limit", total=total)
        )
        return self.replace(
            workspace_limit=own if limit is None else limit if own is None else min(own, limit)
        )

    def to_plain(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return {item.name: to_plain(getattr(self, item.name)) for item in fields(self)}
