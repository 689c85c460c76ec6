"""The CUDA toolkits on this machine, and their versions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from glob import escape, glob
from pathlib import Path

from cudnnlite.devices.cuda import format_cuda_version

_DEFINE = re.compile(r"^#define\s+CUDA_VERSION\s+([0-9]+)", re.MULTILINE)


def find_toolkits(environment: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """Return folder -> version, '13.0' or 'of unknown version', of what has a toolkit's headers."""
    found: dict[str, str] = {}
    folders = [environment[name] for name in ("CUDA_PATH", "CUDA_HOME") if environment.get(name)]
    for pattern in ("usr/local/cuda", "usr/local/cuda-*", "opt/cuda"):
        folders += sorted(glob(os.path.join(escape(root), pattern)))
    for folder in folders:
        real = os.path.realpath(folder)
        if real not in found and os.path.isfile(os.path.join(real, "include", "cuda.h")):
            found[real] = toolkit_version(real) or "of unknown version"
    return found


def toolkit_version(folder: str) -> str:
    """Return a toolkit's version, '13.0'; empty if it tells none."""
    try:
        defined = _DEFINE.search(Path(folder, "include", "cuda.h").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return format_cuda_version(int(defined[1])) if defined else ""
