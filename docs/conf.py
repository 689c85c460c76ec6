"""Sphinx configuration."""

from importlib import metadata

project = "cudnnlite"
author = "the cudnnlite developers"
release = metadata.version("cudnnlite")
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
html_theme = "furo"
html_title = "cudnnlite"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
nitpicky = False
