"""The directive `operation-functions`: documents the functions of a public operation.

``.. operation-functions:: pooling_forward`` inserts signature and docstring of
`pooling_forward.plan`, `graph`, `problem`, `heuristic` and `find`, if the operation has them.  A
function that refuses every call is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import cudnnlite
from cudnnlite.plans.function import OperationFunction

FUNCTION_NAMES = ("plan", "graph", "problem", "heuristic", "find")
# The docstring of a function that refuses every call begins like this.
REFUSAL = "Raise ArgumentError:"


def operations() -> dict[str, Any]:
    """Return the public operations by name."""
    exported = {name: getattr(cudnnlite, name) for name in cudnnlite.__all__}
    return {name: value for name, value in exported.items() if isinstance(value, OperationFunction)}


def functions_of(name: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of an operation by name, without those that refuse every call."""
    operation = operations()[name]
    candidates = {
        function_name: getattr(operation, function_name)
        for function_name in FUNCTION_NAMES
        if hasattr(operation, function_name)
    }
    return {
        function_name: function
        for function_name, function in candidates.items()
        if not inspect.getdoc(function).startswith(REFUSAL)
    }


def directives(name: str) -> list[str]:
    """Return the lines of reStructuredText that document the functions of an operation."""
    lines: list[str] = []
    for function_name in functions_of(name):
        lines += [f".. autofunction:: cudnnlite.{name}.{function_name}", ""]
    return lines


def own_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Return the signature that an operation or one of its functions states for itself.

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
    from sphinx import addnodes
    from sphinx.util.docutils import SphinxDirective

    class OperationFunctions(SphinxDirective):
        """The functions of an operation."""

        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            """Return what `autofunction` makes of each of them.

            They are left out of the page's contents, where every operation would add a `plan()`.
            """
            documented = self.parse_text_to_nodes("\n".join(directives(self.arguments[0])))
            for node in documented:
                for description in node.findall(addnodes.desc):
                    description["no-contents-entry"] = True
            return documented

    app.add_directive("operation-functions", OperationFunctions)
    app.connect("autodoc-process-signature", own_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
