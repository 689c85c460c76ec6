"""The files that the code of a page names, made in a temporary folder."""

from __future__ import annotations

from pathlib import Path

from markdown_pages import Page

from cudnnlite import AlgorithmResult, convolution_forward
from cudnnlite._raw.library import load_library
from cudnnlite.enums import ConvolutionFwdAlgo, MathType
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ProblemList

A_FOLDER = "/opt/cudnn"  # stands for any folder with a cuDNN, or with several
VERSIONS = ("9.14", "9.28")  # its folders, which have the same one


def provide_files(folder: Path, page: Page) -> None:
    """Make what the blocks of a page read: a model, a list of problems, a script."""
    text = "".join(block.text for block in page.blocks)
    makers = {
        "model.onnx": _write_model,
        "problems.json": _write_problems,
        "convolution.py": _write_script,
    }
    for name, make in makers.items():
        if name in text:
            make(folder / name)


def provide_cudnn(folder: Path) -> Path:
    """Make a folder as cuDNN's archive unpacks, its libraries in lib, and such ones in it."""
    for place in (folder, *(folder / version for version in VERSIONS)):
        place.mkdir()
        (place / "lib").symlink_to(Path(load_library().path).resolve().parent)
    return folder


def write_cache(path: Path) -> None:
    """Write a tuning cache with one problem, tuned by two versions of cuDNN on a GPU."""
    row = AlgorithmResult(
        ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM, MathType.TENSOR_OP, time_ms=0.5, workspace=4096
    )
    with TuningCache(path) as cache:
        for cudnn in (91002, 91900):
            key = make_key(
                _problem(),
                {},
                TuningPolicy(),
                DeviceIdentity("NVIDIA H200", "9.0", "570.86.10", cudnn),
            )
            cache.put(
                TuningEntry(
                    key,
                    str(_problem()),
                    "made up",
                    (row,),
                    0,
                    "2026-01-31T10:00:00+00:00",
                    0.1,
                    "0.1.0",
                )
            )


def _problem() -> Problem:
    return convolution_forward.problem(
        TensorSpec((1, 8, 16, 16)), FilterSpec((8, 8, 3, 3)), ConvolutionSpec(padding=1)
    )


def _write_problems(path: Path) -> None:
    ProblemList([_problem()]).save(path)


def _write_script(path: Path) -> None:
    path.write_text(
        "import cudnnlite as dnn\n"
        "with dnn.Handle() as handle:\n"
        "    x, w = handle.zeros((1, 3, 8, 8)), handle.zeros((4, 3, 3, 3))\n"
        "    dnn.convolution_forward(handle, x, w)\n"
    )


def _write_model(path: Path) -> None:
    import onnx
    from onnx_models import conv as node
    from onnx_models import model

    onnx.save(model([node(pads=[1] * 4)], {"x": ("N", 4, 10, 10), "w": (8, 4, 3, 3)}), path)
