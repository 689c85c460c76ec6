"""Compile the library that stands in for the driver's, once for each user."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from stat import S_IFDIR, S_IFMT, S_IFREG, S_IWGRP, S_IWOTH

from cudnnlite.arguments import file_type, refused_as
from cudnnlite.errors import LibraryError
from cudnnlite.files import is_own

SONAME = "libcuda.so.1"
_SOURCE = Path(__file__).with_suffix(".c")
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-shared", "-fPIC", "-O1", f"-Wl,-soname,{SONAME}")
_SECONDS = 60  # the time limit of the compiler, which takes a tenth of a second


def driver_stub() -> Path:
    """Return the path of the library, compiled if the user's cache folder does not have it.

    Raises
    ------
    LibraryError
        There is no C compiler, it fails, the cache folder cannot be written, or another user can
        write to the library.
    """
    source = _SOURCE.read_bytes()
    digest = hashlib.sha256(source + platform.machine().encode()).hexdigest()
    folder = _cache_folder() / digest[:16]
    library = folder / SONAME
    if not file_type(library, follow=False):
        with refused_as(LibraryError, f"{folder} cannot be written"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(folder, S_IFDIR)
            _compile(library)
    with refused_as(LibraryError, f"{folder} cannot be read"):
        _require_own(folder, S_IFDIR)
        _require_own(library, S_IFREG)
    return library


def _require_own(path: Path, kind: int) -> None:
    """Raise LibraryError unless this user alone can write to a path, and it is of a kind.

    The library is native code, which runs with the rights of this user.  Nobody else can replace
    it in a folder of this user's own; the group's bits of the file itself are those of the umask.
    """
    status = os.lstat(path)
    forbidden = S_IWGRP | S_IWOTH if kind == S_IFDIR else S_IWOTH
    if S_IFMT(status.st_mode) != kind or not is_own(status, forbidden):
        raise LibraryError(
            f"{path} is not this user's alone, and is not loaded; remove it, and it is made anew"
        )


def _cache_folder() -> Path:
    with refused_as(LibraryError, "the user's cache folder cannot be found"):
        import platformdirs
    return platformdirs.user_cache_path("cudnnlite", appauthor=False) / "driver_stub"


def _compile(library: Path) -> None:
    """Compile into a temporary folder, then move the library to its path in one step.

    Another process may compile it at the same time.
    """
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder, SONAME)
        command = [*_compiler(), *_OPTIONS, "-o", str(output), str(_SOURCE)]
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LibraryError(f"{command[0]} cannot compile {_SOURCE}: {error}") from error
        if result.returncode:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"exit status {result.returncode}"
            raise LibraryError(f"{command[0]} cannot compile {_SOURCE}: {why}")
        output.replace(library)


def _compiler() -> list[str]:
    """Return the command of the C compiler: that of CC, or the first on the path."""
    if command := shlex.split(os.environ.get("CC", "")):
        return command
    for name in _COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise LibraryError(
        "planning for a GPU that is absent needs a C compiler, once, for a small library in place "
        f"of the driver's; none of {', '.join(_COMPILERS)} is on the PATH, and CC is not set"
    )
