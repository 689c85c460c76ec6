"""Sphinx configuration."""

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

# the tutorials are the notebooks of examples/, executed here on the emulated device
os.environ["CUDNNLITE_DEVICE"] = "emulated"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent / "examples"), os.environ.get("PYTHONPATH"))))
for copied in (HERE / "tutorials").glob("[0-9][0-9]_*.ipynb"):
    copied.unlink()
for source in (HERE.parent / "examples").glob("*.*"):
    if source.suffix in {".ipynb", ".json"}:
        shutil.copy2(source, HERE / "tutorials")

project = "cudnnlite"
author = "the cudnnlite developers"
copyright = "2026, the cudnnlite developers"
release = metadata.version("cudnnlite")
extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "coverage_table"]
html_theme = "furo"
html_title = "cudnnlite"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "attrs_block", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "py:obj"
nitpicky = False
