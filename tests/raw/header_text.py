"""cuDNN's headers as plain text, and gcc's view of them.

These oracles share nothing with the generator.
"""

import ctypes
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from cudnnlite._raw.types import HEADER_VERSION

FAKE_CUDA = {
    "cuda_runtime.h": "#include <cuda_runtime_api.h>",
    "cuda_runtime_api.h": (
        "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t;\n"
        "typedef struct CUgraph_st *cudaGraph_t;"
    ),
    "library_types.h": "typedef enum libraryPropertyType_t { MAJOR_VERSION } libraryPropertyType;",
}


class Prototype(NamedTuple):
    name: str
    header: str
    deprecated: bool
    result: str
    parameters: tuple[str, ...]


@cache
def directory() -> Path:
    """Folder of the installed headers; skips the calling test where there are none."""
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudnn")
    if folder is None:
        pytest.skip("no cuDNN headers: install nvidia-cudnn-cu12 or nvidia-cudnn-cu13")
    return Path(folder)


@cache
def version() -> int:
    text = (directory() / "cudnn_version.h").read_text()
    major, minor, patch = (
        int(re.search(rf"CUDNN_{p} (\d+)", text)[1]) for p in ("MAJOR", "MINOR", "PATCHLEVEL")
    )
    return major * 10000 + minor * 100 + patch


def is_generation_version() -> bool:
    """Whether the installed headers are of the version that the files were generated from."""
    return version() == HEADER_VERSION


@cache
def raw_texts() -> dict[str, str]:
    """Text of each header by short name; the ``_v9`` files are copies."""
    paths = sorted(path for path in directory().glob("cudnn*.h") if not path.stem.endswith("_v9"))
    return {path.stem.removeprefix("cudnn_"): path.read_text(encoding="utf-8") for path in paths}


@cache
def texts() -> dict[str, str]:
    """The same without comments."""
    return {
        name: re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
        for name, text in raw_texts().items()
    }


def comments() -> list[str]:
    return [
        comment
        for text in raw_texts().values()
        for comment in re.findall(r"/\*.*?\*/|//[^\n]*", text, flags=re.S)
    ]


@cache
def prototypes() -> dict[str, Prototype]:
    pattern = re.compile(
        r"^ *(CUDNN_DEPRECATED\s+)?(\w[\w ]*?[ *]+)CUDNNWINAPI\s+(\w+)\s*\(([^;{]*)\)\s*;", re.M
    )
    records = {}
    for header, text in texts().items():
        for mark, result, name, parameters in pattern.findall(text):
            parts = tuple(" ".join(part.split()) for part in parameters.split(","))
            parts = () if parts in (("void",), ("",)) else parts
            records[name] = Prototype(name, header, bool(mark), " ".join(result.split()), parts)
    return records


def split_parameter(parameter: str) -> tuple[str, int]:
    """Type name without qualifiers, and its depth of pointers.

    ``const int dimA[]`` is ``("int", 1)``.
    """
    depth = parameter.count("*") + parameter.count("[")
    words = [
        word
        for word in re.sub(r"[*]|\[[^]]*\]", " ", parameter).split()
        if word not in ("const", "struct")
    ]
    return " ".join(words[:-1]), depth


def declared_type(parameter: str) -> str:
    """C type of a parameter, its name removed: ``const int dimA[]`` is ``const int *``."""
    kind, suffix = re.fullmatch(r"(.*?)\w+\s*((?:\[[^]]*\])?)", parameter).groups()
    return kind.strip() + (" *" if suffix else "")


@cache
def enums() -> dict[str, list[str]]:
    """Enumerators by the enumeration's typedef name."""
    names = {}
    for text in texts().values():
        for body, name in re.findall(r"typedef\s+enum\s*\w*\s*\{([^{}]*)\}\s*(\w+)", text):
            names[name] = re.findall(r"(?:^|,)\s*(CUDNN_\w+)", body)
    return names


@cache
def structs() -> dict[str, list[str]]:
    """Field names by the structure's typedef name."""
    fields = {}
    for text in texts().values():
        for body, name in re.findall(r"typedef\s+struct\s*\w*\s*\{([^{}]*)\}\s*(\w+)", text):
            fields[name] = re.findall(r"(\w+)\s*(?:\[\w+\])?\s*;", body)
    return fields


@cache
def handles() -> set[str]:
    joined = "\n".join(texts().values())
    handle_types = re.findall(
        (
            r"typedef\s+(?:struct\s+\w+|void)\s*(?:CUDNN_DEPRECATED\s*)?\*\s*(\w+)"
            r"\s*(?:CUDNN_DEPRECATED\s*)?;"
        ),
        joined,
    )
    return {*handle_types, "cudaStream_t", "cudaGraph_t"}


def macros() -> list[str]:
    """Names of the macros that have a value and no parameters."""
    joined = "\n".join(texts().values())
    return [
        name
        for name, value in re.findall(r"^#define (CUDNN_\w+) +(\S.*)$", joined, flags=re.M)
        if value.strip()
    ]


def c_class(kind: type) -> int:
    """Class of gcc's __builtin_classify_type.

    1 is an integer or enumeration, 5 a pointer, 8 floating point.
    """
    if issubclass(kind, (ctypes.c_float, ctypes.c_double)):
        return 8
    pointers = (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer, ctypes._CFuncPtr, ctypes.Array)
    return 5 if issubclass(kind, pointers) else 1


def run_c(folder: Path, statements: list[str]) -> list[list[str]]:
    """Compile a main with gcc against the real headers; return the words of its output by line."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    for name, text in FAKE_CUDA.items():
        (folder / name).write_text(text + "\n")
    includes = "".join(
        f'#include "{path}"\n' for path in ("cudnn.h", *(f"cudnn_{name}.h" for name in texts()))
    )
    includes = includes.replace('#include "cudnn_cudnn.h"\n', "")
    body = "\n".join(statements)
    (folder / "main.c").write_text(
        f"#include <stdio.h>\n{includes}int main(void) {{\n{body}\nreturn 0; }}\n"
    )
    program = folder / "main"
    subprocess.run(
        [gcc, "-w", "-O0", f"-I{folder}", f"-I{directory()}", "-o", program, folder / "main.c"],
        check=True,
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [line.split() for line in output.splitlines()]
