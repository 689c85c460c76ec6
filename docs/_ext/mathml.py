"""Formulas as MathML, which browsers draw themselves: no script, no network.  docutils has the converter."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def inline(self: Any, node: Any) -> None:
    """Write a formula within a line."""
    self.body.append(f'<span class="math">{tex2mathml(node.astext(), as_block=False)}</span>')
    raise nodes.SkipNode


def block(self: Any, node: Any) -> None:
    """Write a formula of its own."""
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
