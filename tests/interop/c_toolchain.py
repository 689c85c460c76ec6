"""Finds a compiler, headers and CUDA's runtime for C programs.

These are built against the libcudnn that cudnnlite loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cudnnlite._raw.library import Library

WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror")
_SUBFOLDERS = ("", "targets/x86_64-linux")


class ToolchainError(Exception):
    """Something is missing; the message says what, and where it was looked for."""


class CToolchain:
    """How to compile and link with one libcudnn.

    Attributes
    ----------
    cudnn : Path
        The file libcudnn.so.9.
    commands : list of list of str
        Ways to build a program, the likeliest first; SOURCE and PROGRAM stand for the files.

    Raises
    ------
    ToolchainError
        There is no way.
    """

    def __init__(self, library: Library) -> None:
        self.cudnn = Path(library.path)
        self._cuda = _distinct(_cuda_folders(library.cudart_version // 1000))
        includes = _distinct(self._cudnn_includes())
        headers = next((folder for folder in includes if _major_version(folder) == 9), None)
        if headers is None:
            raise ToolchainError(f"no cudnn.h of cuDNN 9 in {_listed(includes)}")
        self._runtimes: list[Path] = []
        self.commands = [*self._with_gcc(headers), *self._with_nvcc(headers)]
        if not self.commands:
            raise ToolchainError(
                f"no way to compile: gcc at {shutil.which('gcc')}, nvcc at "
                f"{[str(path) for path in self._nvccs()]}; looked "
                f"for cuda_runtime_api.h and libcudart in {_listed(self._cuda)}"
            )

    def build(self, source: Path, program: Path) -> None:
        """Compile and link; if no command works, raise AssertionError with all of them."""
        attempts = []
        for command in self.commands:
            filled = [
                {"SOURCE": str(source), "PROGRAM": str(program)}.get(word, word) for word in command
            ]
            process = subprocess.run(filled, capture_output=True, text=True, check=False)
            if process.returncode == 0:
                return
            attempts.append(f"$ {' '.join(filled)}\n{process.stdout}{process.stderr}")
        raise AssertionError(f"{source.name} could not be built:\n" + "\n".join(attempts))

    def run(self, program: Path | list[str], folder: Path | None = None) -> str:
        """Run a program or a command and return its output; if it fails, raise AssertionError."""
        # The parts of cuDNN lie beside it. They look for cuBLAS and NVRTC in wheels, or where the
        # loader does.
        folders = [
            self.cudnn.resolve().parent,
            *(path.parent for path in self._runtimes),
            *_wheel_libraries(),
        ]
        path = ":".join(
            [*map(str, _distinct(folders)), os.environ.get("LD_LIBRARY_PATH", "")]
        ).rstrip(":")
        environment = os.environ | {"LD_LIBRARY_PATH": path}
        command = program if isinstance(program, list) else [str(program)]
        process = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        report = (
            f"{program} ended with {process.returncode}\n{process.stdout}{process.stderr}\n"
            f"LD_LIBRARY_PATH={path}"
        )
        assert process.returncode == 0, report
        assert process.stderr == "", report
        return process.stdout

    def _cudnn_includes(self) -> Iterator[Path]:
        for library in (self.cudnn, self.cudnn.resolve()):
            yield library.parent.parent / "include"
        for wheels in _wheels():
            yield wheels / "cudnn" / "include"
        yield from (folder / "include" for folder in self._cuda)
        yield from (Path("/usr/include"), Path("/usr/include/x86_64-linux-gnu"))

    def _with_gcc(self, headers: Path) -> Iterator[list[str]]:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            return
        includes = [
            folder / "include"
            for folder in self._cuda
            if (folder / "include/cuda_runtime_api.h").exists()
        ]
        # in wheels for CUDA 12 the compiler's headers, which CUDA's runtime includes, lie apart
        extra = [
            folder
            for wheels in _wheels()
            for folder in sorted(wheels.glob("*/include"))
            if (folder / "crt").is_dir()
        ]
        self._runtimes = [path for folder in self._cuda if (path := _cudart(folder)) is not None]
        pairs = [(include, runtime) for include in includes for runtime in self._runtimes]
        for include, runtime in sorted(
            pairs, key=lambda pair: pair[0].parent not in pair[1].parents
        ):
            searched = [
                folder for folder in (headers, include, *extra) if folder != Path("/usr/include")
            ]
            folders = [word for folder in searched for word in ("-isystem", str(folder))]
            paths = [f"-Wl,-rpath,{path.parent}" for path in (self.cudnn, runtime)]
            yield [
                compiler,
                *WARNINGS,
                "SOURCE",
                "-o",
                "PROGRAM",
                *folders,
                str(self.cudnn),
                str(runtime),
                *paths,
            ]

    def _with_nvcc(self, headers: Path) -> Iterator[list[str]]:
        folder = str(self.cudnn.parent)
        link = ["-L", folder, f"-l:{self.cudnn.name}", "-Xlinker", "-rpath", "-Xlinker", folder]
        for nvcc in self._nvccs():
            # what nvcc adds by itself is C++, which has other standards
            yield [
                str(nvcc),
                "-Xcompiler",
                "-Wall,-Wextra,-Werror",
                "SOURCE",
                "-o",
                "PROGRAM",
                "-isystem",
                str(headers),
                *link,
            ]

    def _nvccs(self) -> list[Path]:
        on_path = shutil.which("nvcc")
        candidates = [Path(on_path)] if on_path else []
        candidates += [folder / "bin" / "nvcc" for folder in self._cuda]
        return [path for path in _distinct(candidates) if path.exists()]


def _cuda_folders(major: int) -> Iterator[Path]:
    """Yield folders that may have CUDA's include and lib.

    They are the environment's, the toolkit's and those of wheels.
    """
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    roots += [Path(nvcc).resolve().parent.parent] if nvcc else []
    local = Path("/usr/local")
    roots += [*sorted(local.glob(f"cuda-{major}*"), reverse=True), local / "cuda", Path("/usr")]
    for wheels in _wheels():
        roots += [wheels / f"cu{major}", wheels / "cuda_runtime"]
    for root in roots:
        yield from (root / part for part in _SUBFOLDERS)


def _cudart(folder: Path) -> Path | None:
    """Return CUDA's runtime library of a folder."""
    libraries = [
        path
        for part in ("lib64", "lib", "lib/x86_64-linux-gnu")
        for path in sorted(folder.glob(f"{part}/libcudart.so*"))
    ]
    return libraries[0] if libraries else None


def _wheels() -> list[Path]:
    return [Path(folder) / "nvidia" for folder in sys.path if (Path(folder) / "nvidia").is_dir()]


def _wheel_libraries() -> list[Path]:
    return [folder for wheels in _wheels() for folder in sorted(wheels.glob("*/lib"))]


def _major_version(include: Path) -> int:
    """Return the major version of the cuDNN whose headers these are; 0 if there are none."""
    path = include / "cudnn_version.h"
    if not (path.exists() and (include / "cudnn.h").exists()):
        return 0
    lines = (line.split() for line in path.read_text(errors="replace").splitlines())
    return next((int(words[2]) for words in lines if words[:2] == ["#define", "CUDNN_MAJOR"]), 0)


def _distinct(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


def _listed(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))
