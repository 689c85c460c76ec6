"""Where a tuning cache lies: a given folder, the environment's, or one in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from cudnnlite.arguments import path_of, shown
from cudnnlite.errors import ArgumentError

CACHE_VARIABLE = "CUDNNLITE_TUNING_CACHE"
IN_MEMORY = ":memory:"


def parse_cache_path(path: str | os.PathLike[str] | None) -> Path | str:
    """Return an absolute path, or ":memory:"; for None what the environment says, or `default_path()`."""
    argument = "path" if path is not None else CACHE_VARIABLE
    path = path if path is not None else os.environ.get(CACHE_VARIABLE) or default_path()
    return IN_MEMORY if isinstance(path, str) and path == IN_MEMORY else parse_folder(path, argument)


def default_path() -> Path:
    """Return where the cache is if no path is given, and the environment has none: in the user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cudnnlite", appauthor=False)) / "tuning"


def parse_folder(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return the absolute path of a folder, which need not be there; ArgumentError if it is none, or a device's.

    A file passes here: it may be a cache of an older version.
    """
    found = path_of(path, argument, "the path of a folder").absolute()
    if os.fspath(path) == IN_MEMORY:
        raise ArgumentError(f"{argument}={IN_MEMORY} is not the path of a folder")
    if os.path.exists(found) and not (os.path.isdir(found) or os.path.isfile(found)):
        raise ArgumentError(f"{argument}={shown(path)} is a device, not a folder")
    return found
