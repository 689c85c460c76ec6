"""What the package says: warnings, which point at the user's line however deep inside they arise, and its log.

``logging.getLogger("cudnnlite")`` has at level INFO which library was found and what was tuned, at
DEBUG which algorithm each plan runs.
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

    (`warnings.warn` has `skip_file_prefixes` for this since Python 3.12.)
    """
    level = 2  # 1 is this function
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
