"""Execute the notebooks of examples/ on a GPU, and store what they printed and drew.

`python docs/record_notebooks.py [NAME ...]`.  The built pages show these outputs; `tests/docs/test_notebooks.py` executes the
notebooks again, and compares what is not a time.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# of a machine and not of the notebook: addresses of objects, folders of temporary files
MACHINE = [
    (re.compile(r"0x[0-9a-f]{6,}"), "0x..."),
    (re.compile(re.escape(str(EXAMPLES.parent)) + "/?"), ""),
    (re.compile(r"(?:/[\w.+-]+)+/(?=site-packages/|dist-packages/)"), ".../"),
    (re.compile(r"/tmp/[\w./+-]+/"), ".../"),
]


def executed(notebook: Any, device: str, timeout: int = 300) -> Any:
    """Execute a notebook in place, in the folder where it lies."""
    import nbclient

    os.environ |= {"CUDNNLITE_DEVICE": device, "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.pop("MPLBACKEND", None)
    nbclient.NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    return notebook


def tidy(notebook: Any) -> Any:
    """Leave what is worth storing: no times of cells, nothing of the machine, small pictures, each stream in one piece."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        merged: list[Any] = []
        for output in cell.outputs:
            if output.output_type == "stream":
                output.text = without_the_machine(output.text)
                if merged and merged[-1].output_type == "stream" and merged[-1].name == output.name:
                    merged[-1].text += output.text
                    continue
            for kind, value in output.get("data", {}).items():
                if not kind.startswith("image/"):
                    output.data[kind] = without_the_machine(value)
            if "image/png" in output.get("data", {}):
                output.data.update(small(output.data.pop("image/png")))
            merged.append(output)
        cell.outputs = merged
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def without_the_machine(text: str) -> str:
    """Return the text without addresses and folders."""
    for pattern, instead in MACHINE:
        text = pattern.sub(instead, text)
    return text


def small(png: str, most: int = 90_000) -> dict[str, str]:
    """Return a picture by its type: of 256 colours if that is small, which charts are, and photographs are not."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    packed = io.BytesIO()
    picture.quantize(256).save(packed, "PNG", optimize=True)
    kind = "image/png"
    if packed.tell() > most:
        kind, packed = "image/jpeg", io.BytesIO()
        picture.save(packed, "JPEG", quality=85, optimize=True)
    return {kind: base64.b64encode(packed.getvalue()).decode()}


def main(arguments: list[str] | None = None) -> None:
    """Record the notebooks that are named, or all."""
    import nbformat

    import cudnnlite as dnn

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=EXAMPLES, help="the folder to write to; examples/ if it is not said")
    parser.add_argument("--device", default="cuda", help="'emulated' only to try this program out")
    chosen = parser.parse_args(arguments)
    with dnn.Handle(device=chosen.device) as handle:
        where = {"device": str(handle.device.name), "cudnn": handle.api.library.version_text}
    where["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    failed = []
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if chosen.names and path.stem not in chosen.names:
            continue
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        try:
            executed(notebook, chosen.device)
        except Exception as error:  # the others are worth recording
            failed.append(path.stem)
            print(f"{path.stem}: {str(error)[-2000:]}", file=sys.stderr)
            continue
        notebook.metadata.recorded = where
        text = nbformat.writes(tidy(notebook)).rstrip("\n") + "\n"
        chosen.to.mkdir(parents=True, exist_ok=True)
        (chosen.to / path.name).write_text(text, encoding="utf-8")
        print(f"{path.stem}: {len(text) / 1024:.0f} KiB")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
