"""Sphinx configuration."""

import re
import shutil
import sys
from importlib import import_module, metadata
from pathlib import Path

from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
paths = import_module("public_names").paths

# the tutorials are the notebooks of examples/, with the outputs that `record_notebooks.py` stored in them
for copied in (HERE / "tutorials").glob("[0-9][0-9]_*.ipynb"):
    copied.unlink()
for source in (HERE.parent / "examples").glob("*.ipynb"):
    text = source.read_text(encoding="utf-8").replace("](../docs/", "](../")
    (HERE / "tutorials" / source.name).write_text(text, encoding="utf-8")
    shutil.copystat(source, HERE / "tutorials" / source.name)

project = "cudnnlite"
author = "the cudnnlite developers"
copyright = "2026, the cudnnlite developers"
release = metadata.version("cudnnlite")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "coverage_table",
    "fault_table",
    "operation_functions",
    "run_tables",
    "code_links",
    "tutorials",
    "mathml",
]
html_theme = "furo"
html_title = "cudnnlite"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_favicon = "_static/favicon.svg"
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "attrs_block", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {
    name: name for name in ("AnyArray", "AnyDtype", "ArrayLike")
}  # not what they stand for
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
numpydoc_xref_param_type = True
numpydoc_xref_aliases = {name: f"cudnnlite.{path}" for name, path in paths().items()} | {
    **dict.fromkeys(("bool", "boolean", "True", "False"), "bool"),
    "callable": "collections.abc.Callable",
    "iterable": "collections.abc.Iterable",
    "sequence": "collections.abc.Sequence",
    "array_like": "numpy.ndarray",
    "array": "cudnnlite.DeviceArray",
    "arrays": "cudnnlite.DeviceArray",
}
numpydoc_xref_ignore = {"optional", "of", "or", "and", "by", "as", "like", "shape", "stream"}
# what is linked to elsewhere, by name: kept here, since a build needs no network
intersphinx_mapping = {
    name: (f"https://{address}/", f"_inventories/{name}.txt")
    for name, address in {
        "python": "docs.python.org/3",
        "numpy": "numpy.org/doc/stable",
        "torch": "docs.pytorch.org/docs/stable",
        "cuda-core": "nvidia.github.io/cuda-python/cuda-core/latest",
    }.items()
}
default_role = "py:obj"
nitpicky = False


def plain_aliases(app, what, name, obj, options, signature, returned):
    """Write an alias within a union as elsewhere, by its name."""
    return tuple(
        text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)
        for text in (signature, returned)
    )


# Types in signatures that are described together, in a section of one page.
TYPES = re.compile(
    r"AnyArray|AnyDtype|ArrayLike|Epilogue|Operand|\w+(?:Activation|Algorithm|Mode)Name"
)


def link_to_types(app, env, node, content):
    """Let a type in a signature lead to the section that describes it."""
    if not TYPES.fullmatch(node["reftarget"].rpartition(".")[2]):
        return None
    page = "reference/handle_and_arrays"
    return make_refnode(app.builder, node["refdoc"], page, "types-in-signatures", content)


def link_to_tutorials(app, docname, source):
    """Let links to the notebooks in examples/ lead to the pages that are made of them."""
    source[0] = re.sub(r"\]\((?:\.\./)+examples/(\w+\.ipynb)", r"](/tutorials/\1", source[0])


def setup(app):
    """Sphinx calls this."""
    app.connect("source-read", link_to_tutorials)
    app.connect("autodoc-process-signature", plain_aliases)
    app.connect("missing-reference", link_to_types)
