"""A figure as SVG that can stand inside an HTML page beside others."""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

from cudnnlite.report.axes import COLORS

_LINK = re.compile(r"^#(.+)$|url\(#([^)]+)\)")
_FONT = re.compile(r"font-family:[^;]*;\s*|font:\s*([\d.]+px)[^;]*;")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_VARIABLES = {color: f"var(--{name},{color})" for name, color in COLORS.items()}
_UNSEEN = "fill:none"  # all that there is to a path: neither filled nor drawn


def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an <svg> element.

    Parameters
    ----------
    figure : matplotlib Figure
        Drawn with `plot_axes.COLORS`, in `plot_axes.plain_style`.
    name : str
        What its ids begin with; no other figure of the page may have the same.
    label : str
        What it shows, for those who cannot see it.

    Returns
    -------
    str
        It has no size of its own but a viewBox, takes the page's font, and its colours are the page's variables (``--ink``,
        ``--bar``, ...) where the page has them.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    linked = {target for each in root.iter() for text in each.attrib.values() if (target := _target(text))}
    _tidy(root, {target: f"{name}-{number}" for number, target in enumerate(sorted(linked))})
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _target(text: str) -> str:
    """Return the id that an attribute points to; empty if to none."""
    found = _LINK.search(text)
    return (found[1] or found[2]) if found else ""


def _tidy(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Make an element and all in it as a page wants them: no namespaces, ids of its own, nothing that is not seen."""
    element.tag = element.tag.rpartition("}")[2]
    attributes: dict[str, str] = {}
    for full, text in element.attrib.items():
        key = full.rpartition("}")[2]  # xlink:href is href today
        if key == "id":
            attributes |= {key: ids[text]} if text in ids else {}
        elif key == "style":
            attributes[key] = _style(text)
        elif not text.startswith("rotate(-0 "):
            target = _target(text)
            attributes[key] = text.replace(f"#{target}", f"#{ids[target]}") if target else _short(text)
    element.attrib = attributes
    kept = []
    for child in element:
        _tidy(child, ids)
        if child.tag == "g" and not child.attrib:
            kept += [*child]  # a group without attributes groups nothing
        elif child.tag not in ("metadata", "style") and child.attrib.get("style") != _UNSEEN and _shows(child):
            kept.append(child)
    element[:] = kept
    if element.tag != "text":
        element.text = None
    element.tail = None


def _shows(element: ElementTree.Element) -> bool:
    return element.tag not in ("g", "defs") or len(element) > 0


def _short(text: str) -> str:
    """Return an attribute's numbers with two decimals, of a unit of which a window has a few hundred."""
    return " ".join(_LONG.sub(lambda found: f"{float(found[0]):.2f}", text).split())


def _style(text: str) -> str:
    text = _FONT.sub(lambda found: f"font-size: {found[1]};" if found[1] else "", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return text.replace(": ", ":").replace("; ", ";")
