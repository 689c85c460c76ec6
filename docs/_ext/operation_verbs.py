"""The directive `verbs`: the verbs of a public operation, each with signature and docstring.

``.. verbs:: pooling_forward`` documents `pooling_forward.plan`, then `problem`, `heuristic` and
`find`, as far as the operation has them.  A verb that does nothing but refuse is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import cudnnlite
from cudnnlite.plans.function import OperationFunction

VERBS = ("plan", "graph", "problem", "heuristic", "find")
REFUSES = "Raise ArgumentError:"  # how the docstring of a verb begins that does nothing else


def operations() -> dict[str, Any]:
    """Return the public operations by name."""
    exported = {name: getattr(cudnnlite, name) for name in cudnnlite.__all__}
    return {name: value for name, value in exported.items() if isinstance(value, OperationFunction)}


def verbs(name: str) -> dict[str, Callable[..., Any]]:
    """Return the verbs of an operation by name, without those that refuse every call."""
    operation = operations()[name]
    candidates = {verb: getattr(operation, verb) for verb in VERBS if hasattr(operation, verb)}
    return {
        verb: function
        for verb, function in candidates.items()
        if not inspect.getdoc(function).startswith(REFUSES)
    }


def directives(name: str) -> list[str]:
    """Return the lines of reStructuredText that document the verbs of an operation."""
    lines: list[str] = []
    for verb in verbs(name):
        lines += [f".. autofunction:: cudnnlite.{name}.{verb}", ""]
    return lines


def own_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Return the signature that an operation or a verb states for itself.

    Sphinx would take the annotations of the function below it, which returns a request.
    """
    from sphinx.util.inspect import stringify_signature

    stated = getattr(obj, "__dict__", {}).get("__signature__")
    if not isinstance(stated, inspect.Signature):
        return None
    text = stringify_signature(stated.replace(return_annotation=inspect.Signature.empty))
    return text, str(stated.return_annotation)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Verbs(SphinxDirective):
        """The verbs of an operation."""

        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            """Return what `autofunction` makes of each of them."""
            return self.parse_text_to_nodes("\n".join(directives(self.arguments[0])))

    app.add_directive("verbs", Verbs)
    app.connect("autodoc-process-signature", own_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
