"""The docs' own Sphinx extensions, for the tests; they can be imported without Sphinx."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "docs" / "_ext"


def load(name: str) -> ModuleType:
    """Import a file of docs/_ext, as conf.py makes Sphinx do."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)
