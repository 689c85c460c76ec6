"""The directive `tutorial`: a card of a notebook, with a picture of it, and an archive to download.

The archive has the notebook and the files that it reads, in the folders in which they lie here, so
that it runs where it is unpacked.  What can be had without Sphinx is `files_of()` and `picture_of()`.
"""

from __future__ import annotations

import base64
import json
import re
import zipfile
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ARCHIVES = "_downloads/notebooks"  # in the folder of the built pages
PICTURES = "_static/notebooks"
# How a notebook or a program names a file that it reads.
_DATA = re.compile(r"\b(\w+\.json)\b")
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
_LINK = re.compile(r"\]\(\.\./(docs/images/[\w.]+)\)")


def read_notebook(name: str) -> dict[str, Any]:
    """Return a notebook as JSON."""
    text = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook: dict[str, Any] = json.loads(text)
    return notebook


def files_of(name: str) -> list[Path]:
    """Return what a notebook needs to run alone: itself, programs, data and pictures."""
    sources = ["".join(cell["source"]) for cell in read_notebook(name)["cells"]]
    files = {EXAMPLES / f"{name}.ipynb"}
    texts = ["\n".join(sources)]
    while texts:
        text = texts.pop()
        found = {EXAMPLES / data for data in _DATA.findall(text)}
        found |= {ROOT / link for link in _LINK.findall(text)}
        programs = {EXAMPLES / f"{module}.py" for module in _IMPORT.findall(text)}
        if "LICENSE" in text:
            found.add(ROOT / "LICENSE")
        for file in found | programs:
            if file.is_file() and file not in files:
                files.add(file)
                if file in programs:
                    texts.append(file.read_text(encoding="utf-8"))
    return sorted(files)


def write_archive(name: str, path: Path) -> None:
    """Write a notebook and what it needs as a ZIP archive, with one folder at the top."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files_of(name):
            archive.write(file, f"cudnnlite_{name}/{file.relative_to(ROOT)}")


def picture_of(name: str) -> tuple[str, bytes] | None:
    """Return the last picture among a notebook's outputs: its kind, "png" or "jpeg", and bytes."""
    picture = None
    for cell in read_notebook(name)["cells"]:
        for output in cell.get("outputs", []):
            for kind in ("png", "jpeg"):
                data = output.get("data", {}).get(f"image/{kind}")
                if data:
                    picture = kind, base64.b64decode("".join(data))
    return picture


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from docutils import nodes
    from docutils.parsers.rst import directives
    from sphinx.util.docutils import SphinxDirective

    class Tutorial(SphinxDirective):
        """A card; the content has the link to the notebook, and says what it shows."""

        required_arguments = 1
        has_content = True
        option_spec: ClassVar[dict[str, Any]] = {"seconds": directives.positive_int}

        def run(self) -> list[nodes.Node]:
            """Return the card."""
            name = self.arguments[0]
            card = nodes.container(classes=["card"])
            picture = picture_of(name)
            if picture is not None:
                source = f"../{PICTURES}/{name}.{picture[0]}"
                html = f'<a href="{name}.html"><img src="{source}" alt="" loading="lazy"></a>'
                card += nodes.raw("", html, format="html")
            card += self.parse_content_to_nodes()
            archive = f"../{ARCHIVES}/{name}.zip"
            download = nodes.reference("", "download", refuri=archive, internal=True)
            seconds = nodes.Text(f"{self.options['seconds']} s without a GPU; ")
            card += nodes.paragraph("", "", seconds, download)
            return [card]

    def write_files(app: Any, exception: Exception | None) -> None:
        """Write archives and pictures beside the built pages."""
        if exception is not None or app.builder.format != "html":
            return
        folder = Path(app.outdir)
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for path in EXAMPLES.glob("*.ipynb"):
            write_archive(path.stem, folder / ARCHIVES / f"{path.stem}.zip")
            picture = picture_of(path.stem)
            if picture is not None:
                kind, data = picture
                (folder / PICTURES / f"{path.stem}.{kind}").write_bytes(data)

    app.add_directive("tutorial", Tutorial)
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
