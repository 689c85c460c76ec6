"""Code in a page's text leads to the reference: `dnn.Tuner`, `handle.array(...)`, `cudnnConvolutionForward`.

A name is linked where it first occurs in a section.  A C function leads to its row of the table of all functions, and a member
of a C enumeration to its row of the enums.  These rows are also what the index, and so the search, finds first.
"""

from __future__ import annotations

import re
from typing import Any

TABLE = "reference/coverage"
# The pages with the tables of enums.
ENUM_PAGES = (
    "reference/enums",
    "reference/activations",
    "reference/batch_normalization",
    "reference/tensors",
    "reference/ctc_loss",
)
CODE = re.compile(r"(?:(?:dnn|cudnnlite)\.)?([A-Za-z_][\w.]*)(?:\(.*\))?", re.DOTALL)
C_FUNCTION = re.compile(r"cudnn[A-Z]\w*")
C_MEMBER = re.compile(r"CUDNN_\w+")
# what snippets call their objects
KINDS = {
    "handle": "Handle",
    "tuner": "Tuner",
    "weights": "RNNWeights",
    "found": "AlgorithmTable",
    "table": "AlgorithmTable",
}


def name_of(code: str) -> str:
    """Return the name that a piece of code is about, without our package's; empty if it is none."""
    found = CODE.fullmatch(code)
    if found is None:
        return ""
    first, *rest = found[1].split(".")
    return ".".join([KINDS.get(first, first) if rest else first, *rest])


def rows_of(doctree: Any, c_name: re.Pattern[str]) -> list[str]:
    """Give every row with a C name an anchor and an entry in the index, and return the names.

    In a row the first code that matches `c_name` is the name; a cell of text that names others
    comes after it.
    """
    from docutils import nodes
    from sphinx import addnodes

    names = []
    for row in doctree.findall(nodes.row):
        for literal in list(row.findall(nodes.literal))[:2]:
            name = literal.astext()
            if c_name.fullmatch(name):
                row["ids"].append(name)
                entry = ("single", name, name, "main", None)
                literal.parent.insert(0, addnodes.index(entries=[entry]))
                names.append(name)
                break
    return names


def link(app: Any, doctree: Any, docname: str) -> None:
    """Link the code of a page, after Sphinx has resolved what was marked as a reference."""
    from docutils import nodes

    objects, rows, others = app.env.domains["py"].objects, functions(), elsewhere(app)
    seen: set[tuple[int, str]] = set()
    for literal in list(doctree.findall(nodes.literal)):
        name, parent = name_of(literal.astext()), literal.parent
        section = None
        while parent is not None:
            if isinstance(parent, (nodes.reference, nodes.title)):
                break
            section = parent if section is None and isinstance(parent, nodes.section) else section
            parent = parent.parent
        if not name or parent is not None or (id(section), name) in seen:
            continue
        if name.rpartition(".")[2] in rows:
            target = TABLE, name.rpartition(".")[2]
        elif f"cudnnlite.{name}" in objects:
            entry = objects[f"cudnnlite.{name}"]
            target = entry.docname, entry.node_id
        elif name not in others:
            continue
        if name not in others and docname == target[0] == TABLE:
            continue
        seen.add((id(section), name))
        address = (
            others.get(name) or f"{app.builder.get_relative_uri(docname, target[0])}#{target[1]}"
        )
        reference = nodes.reference("", "", internal=name not in others, refuri=address)
        literal.replace_self(reference)
        reference += literal


def elsewhere(app: Any) -> dict[str, str]:
    """Return the addresses of what other projects document, of the inventories in docs/_inventories; `np` is NumPy."""
    from sphinx.ext.intersphinx import InventoryAdapter

    kinds = InventoryAdapter(app.env).main_inventory.values()
    found = {name: item.uri for kind in kinds for name, item in kind.items() if "." in name}
    return found | {name.replace("numpy.", "np."): uri for name, uri in found.items()}


def functions() -> frozenset[str]:
    """Return the names of cuDNN's C functions."""
    from cudnnlite._raw.functions import FUNCTIONS

    return frozenset(FUNCTIONS)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from sphinx.transforms import SphinxTransform

    class Rows(SphinxTransform):
        """Before the domains read what a page declares."""

        default_priority = 800

        def apply(self, **kwargs: Any) -> None:
            """See `rows_of`."""
            if self.env.docname == TABLE:
                rows_of(self.document, C_FUNCTION)
            elif self.env.docname in ENUM_PAGES:
                rows_of(self.document, C_MEMBER)

    app.add_transform(Rows)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
