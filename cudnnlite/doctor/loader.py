"""Where the dynamic loader would find a library that cuDNN opens by name, told without opening it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape, glob

from cudnnlite.doctor.places import Place, split_path


@dataclass(frozen=True)
class Wanted:
    """A library that cuDNN opens by name, and what was found of it.

    Attributes
    ----------
    name : str
        'libcublasLt.so.12'.
    path : str
        The file that is, or would be, opened; empty if there is none.
    how : str
        Why that one: 'LD_LIBRARY_PATH', 'beside cuDNN', 'the loader's cache', 'site-packages', ...
    wheel : str
        The wheel that installed it; empty if none did, or it was not asked.
    out_of_sight : str
        Where path is empty: a file of that name that the loader does not look at.
    """

    name: str
    path: str = ""
    how: str = ""
    wheel: str = ""
    out_of_sight: str = ""


def look_up(
    name: str,
    mapped: Iterable[str],
    search_path: Iterable[str],
    environment: Mapping[str, str],
    cache: Mapping[str, tuple[str, ...]],
    places: Sequence[Place],
) -> Wanted:
    """Look for a library in the loader's order.

    Parameters
    ----------
    name : str
        Its name, with the version: 'libcublasLt.so.12'.
    mapped : iterable of str
        The files that the process has loaded; one of that name is taken without a search.
    search_path : iterable of str
        The folders that the opening library names.
    environment : mapping
        The environment variables.
    cache : mapping
        The loader's cache.
    places : sequence of Place
        Where else to look for a file of that name, in order to say where it is.
    """
    for path in mapped:
        if re.fullmatch(rf"{re.escape(name)}(\.[0-9]+)*", os.path.basename(path)):
            folder = os.path.dirname(os.path.realpath(path))
            hows = (place.how for place in places if os.path.realpath(place.folder) == folder)
            return Wanted(name, path, next(hows, "another library that was loaded before"))
    folders = [(folder, "LD_LIBRARY_PATH") for folder in split_path(environment.get("LD_LIBRARY_PATH"))]
    folders += [(folder, "beside cuDNN") for folder in search_path]
    folders += [(os.path.dirname(path), "the loader's cache") for path in cache.get(name, ())]
    folders += [(folder, "the system's folders") for folder in ("/lib", "/usr/lib", "/lib64", "/usr/lib64")]
    for folder, how in folders:
        if os.path.isfile(os.path.join(folder, name)):
            return Wanted(name, os.path.realpath(os.path.join(folder, name)), how)
    for place in places:
        for path in sorted(glob(os.path.join(escape(place.folder), name))):
            return Wanted(name, out_of_sight=path)
    return Wanted(name)
