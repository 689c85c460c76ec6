"""The package's warnings and its log.

A warning points at the user's line, however deep inside the package it arises.
``logging.getLogger("cudnnlite")`` logs at level INFO which library was found and what was tuned,
and at DEBUG which algorithm each plan runs.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

log = logging.getLogger("cudnnlite")
_PACKAGE = str(Path(__file__).parent) + os.sep


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn, with the location of the innermost frame outside this package.

    Since Python 3.12 `warnings.warn` has `skip_file_prefixes` for this.
    """
    level = 2  # level 1 is this function
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
