"""Find and load libcudnn, once per process, and know which files it consists of.

libcudnn.so.9 is a thin front: it opens libcudnn_ops, libcudnn_cnn and the others when they are
first needed, by name. Where several copies of cuDNN are on a machine (a wheel, the system's,
another framework's), the loader may satisfy that name with a file of another copy.  So the parts
are opened here, from the folder of the front, before cuDNN looks for them, and what is then mapped
into the process is compared with that folder.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path

from cudnnlite._raw.elf import why_unloadable
from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite.arguments import refusals_ignored, refused_as
from cudnnlite.errors import LibraryError, LibraryNotFoundError, MixedLibrariesError
from cudnnlite.warn import log, warn_user

LIBRARY_VARIABLE = "CUDNNLITE_LIBCUDNN"
_SONAME = "libcudnn.so.9"
# The parts that every descriptor or operation needs, in the order of their dependencies.  The
# engine libraries (some of them half a gigabyte) stay with cuDNN, which opens them when a kernel is
# wanted.
_PARTS = ("graph", "ops", "cnn", "adv")
_VERSION_CHECKS = (
    "cudnnGraphVersionCheck",
    "cudnnOpsVersionCheck",
    "cudnnCnnVersionCheck",
    "cudnnAdvVersionCheck",
)

_loaded: Library | None = None


@dataclass(frozen=True)
class Library:
    """A loaded libcudnn: `path` is the file of the front, libcudnn.so.9, and `cdll` that, loaded.

    `how` it was found: 'CUDNNLITE_LIBCUDNN', 'already loaded', or what cuda-pathfinder reports
    ('site-packages', 'system-search', 'CUDNN_PATH', ...).  `version` is `cudnnGetVersion()`: 92800
    is 9.28.0.

    Notes
    -----
    C functions, when it is loaded: `cudnnGetVersion`, `cudnnGraphVersionCheck`,
    `cudnnOpsVersionCheck`, `cudnnCnnVersionCheck`, `cudnnAdvVersionCheck`.
    """

    path: str
    how: str
    version: int
    cdll: ctypes.CDLL = field(repr=False, compare=False)

    @property
    def version_text(self) -> str:
        """The version as people write it, '9.28.0'."""
        return format_version(self.version)

    @property
    def cudart_version(self) -> int:
        """The CUDA runtime that cuDNN was built with (`cudnnGetCudartVersion`): 12090 is 12.9; 0 if it does not say."""
        try:
            function = self.cdll.cudnnGetCudartVersion
        except AttributeError:
            return 0
        function.restype = ctypes.c_size_t
        return int(function())

    def parts(self) -> list[str]:
        """Return the paths of the libcudnn files that this process has mapped, the front included."""
        return mapped_cudnn_files()


def load_library() -> Library:
    """Load libcudnn, or return the one already loaded by this function.

    The search order is the environment variable `CUDNNLITE_LIBCUDNN` (a file or a folder), then
    cuda-pathfinder's: already loaded in this process, the nvidia-cudnn wheel, conda, the system's
    loader, `CUDNN_PATH`.  LibraryNotFoundError if none was found, or the file that the variable
    names cannot be loaded; MixedLibrariesError if its parts come from different, incompatible
    copies; LibraryError for what the system refuses.
    """
    global _loaded  # noqa: PLW0603  (the process has one libcudnn; this is where that is remembered)
    with fork_lock:
        if _loaded is None:
            with refused_as(LibraryError, "libcudnn cannot be loaded"):  # too many open files, say
                _loaded = _load()
        return _loaded


def _load() -> Library:
    path, how = _find()
    _check_files(path, how)
    try:
        cdll = ctypes.CDLL(path)
        get_version = cdll.cudnnGetVersion
    except (OSError, AttributeError) as error:
        raise LibraryNotFoundError(
            f"{path} (found through {how}) cannot be loaded as libcudnn: {error}"
        ) from error
    get_version.restype = ctypes.c_size_t
    library = Library(path, how, int(get_version()), cdll)
    if library.version // 10000 != 9:
        raise LibraryError(
            f"cudnnlite needs cuDNN 9.x; {path} (found through {how}) is {library.version_text}"
        )
    _load_parts(library)
    log.info("libcudnn %s at %s, found through %s", library.version_text, path, how)
    return library


def _check_files(path: str, how: str) -> None:
    """Look at the files first: cuDNN aborts the process where a part is missing, and a file that is cut off kills it.

    (9.28 without 'graph', 9.0 without 'cnn' or 'adv' too.)
    """
    front = Path(path).resolve()
    files = (file for file in sorted(front.parent.glob("libcudnn*.so.9")) if file.is_file())
    wrong = [f"{file.name} {why}" for file in files if (why := why_unloadable(file))]
    if any(why.startswith(f"{front.name} is") for why in wrong):
        return  # of what is no library at all the loader says so
    mapped = {Path(file).name for file in mapped_cudnn_files()}
    parts = [f"libcudnn_{part}.so.9" for part in _PARTS]
    missing = [
        f"{part} is not beside it"
        for part in parts
        if part not in mapped and not (front.parent / part).is_file()
    ]
    if missing and not wrong:
        with front.open("rb") as file:  # at whose beginning its functions are named
            if b"cudnnGetVersion" not in file.read(1 << 24):
                raise LibraryNotFoundError(
                    f"{path} (found through {how}) has no cudnnGetVersion: it is no cuDNN"
                )
    if wrong := wrong + missing:
        raise LibraryError(
            f"libcudnn at {path} (found through {how}) is not whole: {'; '.join(wrong)}. Install it again"
        )


def _find() -> tuple[str, str]:
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        path = Path(override)
        if os.path.isdir(path):  # which has no error of its own for a path that is too long
            path = path / _SONAME
        if not os.path.isfile(path):
            raise LibraryNotFoundError(f"{LIBRARY_VARIABLE}={override}: there is no file {path}")
        return str(path.resolve()), LIBRARY_VARIABLE
    from cuda import pathfinder

    try:
        found = pathfinder.load_nvidia_dynamic_lib("cudnn")
    except (pathfinder.DynamicLibNotFoundError, RuntimeError) as error:
        raise LibraryNotFoundError(
            "no libcudnn.so.9 was found (looked for: already loaded in this process, the nvidia-cudnn-cu12 or -cu13 wheel, "
            "conda, the system's library folders, CUDNN_PATH). Install one with pip install nvidia-cudnn-cu12 (or -cu13), "
            f"or name a file in {LIBRARY_VARIABLE}. cuda-pathfinder, which also wants the cuBLAS that cuDNN needs, says: "
            + "; ".join(str(error).split("\n")).strip("; ")
        ) from error
    how = "already loaded" if found.was_already_loaded_from_elsewhere else str(found.found_via)
    return str(found.abs_path), how


def _load_parts(library: Library) -> None:
    folder = Path(library.path).resolve().parent
    strays = [path for path in mapped_cudnn_files() if Path(path).parent != folder]
    for part in _PARTS:
        path = folder / f"libcudnn_{part}.so.9"
        if path.exists():
            try:
                ctypes.CDLL(str(path))
            except OSError as error:
                if strays:
                    raise _mixed(
                        library, f"its part {path.name} cannot be loaded ({error})"
                    ) from error
                raise LibraryError(
                    f"libcudnn {library.version_text} at {library.path} is broken: {error}"
                ) from error
    refused = [name for name in _VERSION_CHECKS if _version_check(library.cdll, name) != 0]
    if refused:
        raise _mixed(library, f"it refuses its own parts ({', '.join(refused)})")
    if strays:
        warn_user(
            f"parts of another cuDNN copy are mapped beside {library.path}; their versions agree, so it may work:\n"
            + _listing(),
            RuntimeWarning,
        )


def _mixed(library: Library, symptom: str) -> MixedLibrariesError:
    return MixedLibrariesError(
        f"libcudnn {library.version_text} at {library.path}: {symptom}. This process has mapped a mixture of copies:\n"
        f"{_listing()}\nMake a handle before whatever loads the other copy is imported, or point {LIBRARY_VARIABLE} at that one"
    )


def _version_check(cdll: ctypes.CDLL, name: str) -> int:
    function = getattr(cdll, name, None)
    if function is None:  # an older front without that part
        return 0
    function.restype = ctypes.c_int
    return int(function())


def _listing() -> str:
    return "\n".join(f"  {path}" for path in mapped_cudnn_files())


def mapped_cudnn_files(prefixes: tuple[str, ...] = ("libcudnn",)) -> list[str]:
    """Return the files of libcudnn, or others, that this process has mapped (Linux; empty where /proc does not tell)."""
    lines: list[str] = []
    with refusals_ignored():
        lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return sorted(path for path in paths if Path(path).name.startswith(prefixes))


def format_version(version: int) -> str:
    """Format cuDNN's version number: 92800 becomes '9.28.0' (8.x and older used another scheme: 8907 is '8.9.7')."""
    major, rest = divmod(version, 10000) if version >= 90000 else divmod(version, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
