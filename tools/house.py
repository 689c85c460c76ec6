"""Count what a reader of the package has to know, and what a call enters: figures to look at.

    python -m tools.house

- hand-written modules, classes and functions;
- classes of plans, requests and operation functions, by their names;
- the functions and modules that a first and a warm call of a convolution and of attention enter, on
  the emulated device, without those of the emulated device itself.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import cudnnlite as dnn
from tools.style import python_files

PACKAGE = Path(dnn.__file__).parent
EMULATED = PACKAGE / "emulated"
KINDS = ("Plan", "Request", "Function")


def hand_written() -> Iterator[ast.Module]:
    """Yield the syntax trees of the modules that no generator wrote."""
    for path in python_files(PACKAGE):
        yield ast.parse(path.read_text())


def entered(call: Callable[[], object]) -> str:
    """Return how many functions of the package a call enters, in how many modules."""
    functions = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not path.is_relative_to(EMULATED):
            functions.add((path, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return f"{len(functions)} functions in {len({path for path, _ in functions})} modules"


def main() -> None:
    """Print the figures."""
    nodes = [node for tree in hand_written() for node in ast.walk(tree)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    functions = [
        node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    modules = [node for node in nodes if isinstance(node, ast.Module)]
    print(f"{len(modules)} modules, {len(classes)} classes, {len(functions)} functions")
    for kind in KINDS:
        names = [name for name in classes if name.endswith(kind)]
        print(f"{kind}: {len(names)}: {', '.join(sorted(names))}")
    rng = np.random.default_rng(0)
    with dnn.Handle("emulated") as handle:
        x = handle.array(rng.standard_normal((2, 3, 8, 8)).astype(np.float32))
        w = handle.array(rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
        q = handle.array(rng.standard_normal((2, 4, 64, 32)).astype(np.float16))
        calls: dict[str, Callable[[], object]] = {
            "convolution": lambda: dnn.convolution_forward(handle, x, w),
            "attention": lambda: dnn.scaled_dot_product_attention_forward(handle, q, q, q),
        }
        for name, call in calls.items():
            print(f"{name}, first call: {entered(call)}")
            print(f"{name}, warm call: {entered(call)}")


if __name__ == "__main__":
    main()
