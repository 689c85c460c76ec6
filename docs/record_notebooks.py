"""Execute the notebooks of examples/ on a GPU, and store what they printed and drew.

`python docs/record_notebooks.py [NAME ...]` needs no Jupyter: each notebook is executed in a process of its own, its cells one
after the other in one namespace.  The built pages show these outputs; `tests/docs/test_notebooks.py` executes the notebooks
again, by Jupyter, and compares what is not a time.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import datetime
import io
import json
import linecache
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# of a machine and not of the notebook: addresses of objects, folders of the installation and of temporary files
MACHINE = (
    (r"0x[0-9a-f]{6,}", "0x..."),
    (r"(?:/[\w.+-]+)+/(?=site-packages/|dist-packages/|examples/)", ".../"),
)
MOST = 90_000  # bytes of a picture


class Cell:
    """A cell that is executed: what it prints and draws, in order."""

    def __init__(self, source: str, number: int) -> None:
        self.source, self.number = source, number
        self.outputs: list[dict[str, Any]] = []
        self._printed = io.StringIO()

    def run(self, names: dict[str, Any]) -> None:
        """Execute it; the value of a last expression is shown, as in Jupyter."""
        import matplotlib.pyplot as plt

        plt.show = partial(self._show)  # pyplot sets attributes of it
        name = (
            f"ipykernel_{self.number}"  # as Jupyter's begin: a trace writes down lines of notebooks
        )
        linecache.cache[name] = (
            len(self.source),
            None,
            self.source.splitlines(keepends=True),
            name,
        )
        code = ast.parse(self.source)
        last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(self._printed):
            exec(compile(code, name, "exec"), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            self._flush()
            data = {"text/plain": lines(without_the_machine(repr(value)))}
            if hasattr(value, "_repr_html_"):
                data["text/html"] = lines(without_the_machine(value._repr_html_()))
            shown = {
                "output_type": "execute_result",
                "data": data,
                "metadata": {},
                "execution_count": self.number,
            }
            self.outputs.append(shown)
        self._flush()

    def _flush(self) -> None:
        if text := self._printed.getvalue():
            shown = {
                "output_type": "stream",
                "name": "stdout",
                "text": lines(without_the_machine(text)),
            }
            self.outputs.append(shown)
            self._printed.seek(0)
            self._printed.truncate()

    def _show(self) -> None:
        """Take the place of `plt.show`."""
        import matplotlib.pyplot as plt

        self._flush()
        for number in plt.get_fignums():
            figure, drawn = plt.figure(number), io.BytesIO()
            figure.savefig(drawn, format="png", bbox_inches="tight", dpi=100)
            width, height = (round(size * figure.dpi) for size in figure.get_size_inches())
            data = {
                **small(drawn),
                "text/plain": [f"<Figure size {width}x{height} with {len(figure.axes)} Axes>"],
            }
            self.outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        plt.close("all")


def lines(text: str) -> list[str]:
    """Return a text as a notebook stores it."""
    return text.splitlines(keepends=True)


def without_the_machine(text: str) -> str:
    """Return the text without addresses and folders."""
    for pattern, instead in MACHINE:
        text = re.sub(pattern, instead, text)
    return text


def small(drawn: io.BytesIO) -> dict[str, str]:
    """Return a picture by its type: of 256 colours if that is small, which charts are, and photographs are not."""
    from PIL import Image

    picture, packed, kind = Image.open(drawn).convert("RGB"), io.BytesIO(), "image/png"
    picture.quantize(256).save(packed, "PNG", optimize=True)
    for quality in (85, 70, 55, 40):
        if packed.tell() > MOST:
            kind, packed = "image/jpeg", io.BytesIO()
            picture.save(packed, "JPEG", quality=quality, optimize=True)
    return {kind: base64.b64encode(packed.getvalue()).decode() + "\n"}


def record(path: Path, to: Path, device: str) -> None:
    """Execute a notebook, and write it with its outputs."""
    import matplotlib

    matplotlib.use("Agg")
    os.environ |= {"CUDNNLITE_DEVICE": device, "MPLBACKEND": "Agg"}
    os.chdir(EXAMPLES)
    sys.path.insert(0, str(EXAMPLES))
    import cudnnlite as dnn

    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    start = time.perf_counter()
    for number, cell in enumerate(code, start=1):
        running = Cell("".join(cell["source"]), number)
        running.run(names)
        cell["execution_count"], cell["outputs"] = number, running.outputs
    seconds = time.perf_counter() - start
    with dnn.Handle(device=device) as handle:
        where = {"device": str(handle.device.name), "cudnn": handle.api.library.version_text}
    notebook["metadata"]["recorded"] = where | {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "seconds": round(seconds, 1),
    }
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (to / path.name).write_text(text, encoding="utf-8")
    print(f"{path.stem}: {len(text) / 1024:.0f} KiB, {seconds:.1f} s")


def alone(work: Callable[..., None], *arguments: Any) -> bool:
    """Do it in a process of its own; tell whether that went well."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    return process.exitcode == 0


def main() -> None:
    """Record the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--to",
        type=Path,
        default=EXAMPLES,
        help="the folder to write to; examples/ if it is not said",
    )
    parser.add_argument("--device", default="cuda", help="'emulated' only to try this program out")
    chosen = parser.parse_args()
    chosen.to.mkdir(parents=True, exist_ok=True)
    paths = [
        path
        for path in sorted(EXAMPLES.glob("*.ipynb"))
        if path.stem in (chosen.names or [path.stem])
    ]
    failed = [
        path.stem for path in paths if not alone(record, path, chosen.to.resolve(), chosen.device)
    ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
