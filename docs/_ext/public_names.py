"""Everything public by its short name: what is at the top, and in the modules with the rest."""

from __future__ import annotations

from typing import Any

import cudnnlite as dnn

MODULES = ("descriptors", "enums", "errors", "specs", "types", "workbench")


def paths() -> dict[str, str]:
    """Return where each public name is, such as "Handle" or "enums.PoolingMode"."""
    found = {
        name: f"{module}.{name}" for module in MODULES for name in getattr(dnn, module).__all__
    }
    return found | {name: name for name in dnn.__all__ if name not in MODULES}


def things() -> dict[str, Any]:
    """Return everything public."""
    found: dict[str, Any] = {}
    for name, path in paths().items():
        module, _, _ = path.rpartition(".")
        found[name] = getattr(getattr(dnn, module) if module else dnn, name)
    return found
