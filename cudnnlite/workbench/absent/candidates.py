"""`Candidates`: the engines that cuDNN has for a graph on a GPU that is absent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from cudnnlite._raw.library import version_number
from cudnnlite.arguments import one_of, path_of, real_number, shown
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.device_properties import parse_properties
from cudnnlite.graph.faults import why_wrong
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned
from cudnnlite.types import DeviceProperties
from cudnnlite.workbench.absent.answers import Answer, Candidate, Question

if TYPE_CHECKING:
    from cudnnlite.workbench.absent.planner import Planner

DEFAULT_TIMEOUT = 120.0  # seconds; an engine is compiled in one
_HEADING = ("engine", "served", "workspace", "finalised", "kernels or reason")


class Candidates(Sequence[Candidate]):
    """The engines that cuDNN's heuristics name for a graph on a GPU, the preferred first.

    It is a sequence of `Candidate`, and prints as a table.  cuDNN answers for the architecture that
    the properties have; nothing ran, so nothing is known of the card's times.

    Attributes
    ----------
    subject : str
        The problem or graph, in words.
    properties : DeviceProperties
        The GPU.
    cudnn : str
        The version of cuDNN that answered, "9.28.0".
    choice : Candidate or None
        The first engine that is served.  With the GPU, cuDNN may name others before it: those that
        count the card's clusters, or call cuBLASLt, are not named without it.
    served : bool
        Whether there is one.
    why_not : str
        Why no engine serves; empty if one does.
    """

    def __init__(
        self, subject: str, properties: DeviceProperties, cudnn: str, answer: Answer
    ) -> None:
        self.subject = subject
        self.properties = properties
        self.cudnn = cudnn
        self._rows = answer.rows
        self._answer = answer

    @property
    def choice(self) -> Candidate | None:
        """The first engine that is served; None if none is."""
        return next((row for row in self._rows if row.served), None)

    @property
    def served(self) -> bool:
        """Whether an engine is served."""
        return self.choice is not None

    @property
    def why_not(self) -> str:
        """Why no engine serves; empty if one does."""
        if self.served:
            return ""
        reasons = dict.fromkeys(f"{row.engine}: {row.why_not}" for row in self._rows)
        return self._answer.why_not or "; ".join(reasons)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        state = "served" if self.served else f"not served: {self.why_not}"
        return f"<{type(self).__name__} for {self.properties.name}: {len(self)}, {state}>"

    def __str__(self) -> str:
        title = f"{self.subject} on {self.properties}, cuDNN {self.cudnn}: "
        title += "served" if self.served else f"not served: {self.why_not}"
        if not self._rows:
            return title
        rows = [_HEADING, *(_cells(row) for row in self._rows)]
        return "\n".join([title, *aligned(rows, numeric={"workspace", "finalised"})])


def _cells(row: Candidate) -> tuple[str, ...]:
    """Return a candidate as the cells of a table."""
    if row.why_not:
        return (str(row.engine), "no", "", "", row.why_not)
    if row.workspace is None or row.seconds is None:
        return (str(row.engine), "not tried", "", "", "")
    seconds = f"{row.seconds * 1e3:.1f} ms"
    return (str(row.engine), "yes", format_size(row.workspace), seconds, ", ".join(row.kernels))


class Subject(NamedTuple):
    """A problem or a graph about which cuDNN is asked.

    Attributes
    ----------
    graph : GraphData
        The graph.
    math_type : MathType
        The conversion that engines may apply to the operands of the graph's products.
    text : str
        The problem or graph, in words.
    """

    graph: GraphData
    math_type: MathType
    text: str


def ask_planner(
    planner: Planner, subject: Subject, properties: DeviceProperties, *, every: bool = False
) -> Candidates:
    """Return the engines for a graph on a GPU.

    ArgumentError for a graph that is never planned, before cuDNN is asked.
    """
    if reason := why_wrong(subject.graph, version_number(planner.version)):
        raise ArgumentError(reason)
    question = Question(subject.graph, properties.to_json(), subject.math_type, every)
    return Candidates(subject.text, properties, planner.version, planner.ask(question))


def ask_about(
    subjects: Sequence[Subject], properties: Any, *, every: bool, cudnn: Any, timeout: Any
) -> list[Candidates]:
    """Check the arguments of `candidates`, and return the engines for several graphs."""
    device = parse_properties(properties, "properties")
    every = one_of(every, "every", True, False)
    library = None if cudnn is None else path_of(cudnn, "cudnn")
    seconds = real_number(timeout, "timeout")
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"timeout={shown(timeout)}; needed: a number of seconds above 0")
    if not subjects:
        return []
    # The modules for processes and pipes took a tenth of the time of `import cudnnlite`.
    from cudnnlite.workbench.absent.planner import Planner

    with Planner(library, seconds) as planner:
        return [ask_planner(planner, subject, device, every=every) for subject in subjects]
