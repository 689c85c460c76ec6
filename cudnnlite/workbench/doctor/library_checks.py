"""Checks of libcudnn: the one in use, its parts, other copies, and the libraries that it needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite.devices.cuda_facts import format_cuda_version
from cudnnlite.workbench.doctor.environment import by_folder, split_path
from cudnnlite.workbench.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, finding_of
from cudnnlite.workbench.doctor.libraries import (
    DEPENDENCIES,
    LOADER_CACHE,
    MAJOR,
    UNSEARCHED,
    Copy,
    Dependency,
    LibraryFacts,
    major_of,
)

# The loader's message if a library that is not cuDNN's is missing.
_MISSING = re.compile(r"(?<!\S)\(?(?!libcudnn)(lib\S+\.so\S*): cannot open shared object file")
_SET = f"set {LIBRARY_VARIABLE}"
_INSTALL = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
_NO_PRELOAD = "unset LD_PRELOAD, or take cuDNN's files out of it"


class _Conflict(NamedTuple):
    """How a copy of another version can come into a program.

    Attributes
    ----------
    how : str
        The key of `Copy.origins`; empty for any.
    effect : str
        The behaviour of a program that finds this copy.
    fix : str
        The advice, with fields for the copy's `folder` and the searched `place`.
    """

    how: str
    effect: str
    fix: str


# The worst first.
_CONFLICTS = (
    _Conflict(
        "LD_LIBRARY_PATH",
        "the loader looks there first, and may mix the two",
        "take {place} out of LD_LIBRARY_PATH",
    ),
    _Conflict("LD_PRELOAD", "every program started from here loads it", _NO_PRELOAD),
    _Conflict(
        "CUDNN_PATH",
        "CUDNN_PATH is looked at last",
        _SET + "={folder} to use it, or unset CUDNN_PATH",
    ),
    _Conflict(
        LOADER_CACHE,
        "programs that ask the loader get that one",
        f"remove one of the two, or {_SET} to the folder of one",
    ),
    _Conflict(
        "",
        "programs that search that folder get that one",
        _SET + "={folder} beside that package, or remove one of the two",
    ),
)


def judge(facts: LibraryFacts) -> Iterator[Finding]:
    """Report the findings about libcudnn."""
    for package, step in facts.imports.items():
        yield _judge_import(package, step)
    if facts.loaded.get("error"):
        yield _judge_failed_load(facts)
    else:
        yield from _judge_library_in_use(facts)
    for copy in facts.copies:
        if copy.origins and copy.path != facts.path:
            yield _judge_other_copy(facts.loaded, copy)
    if len(facts.wheels) > 1:
        yield _judge_wheels(facts.wheels)
    for dependency, (name, path, hidden_path) in zip(DEPENDENCIES, facts.needs, strict=False):
        yield _judge_dependency(dependency, name, path, hidden_path, is_on_gpu=facts.uses_gpu)


def _judge_import(package: str, step: Mapping[str, Any]) -> Finding:
    """Return whether a package could be imported first, and what of cuDNN it loaded."""
    facts = {"package": package}
    error = step.get("error")
    if error:
        message = " ".join(step.get("message", "").split())
        text = f"{package} cannot be imported: {error}: {message}"
        fix = f"install {package} in this environment, or leave out --import {package}"
        return finding_of("library.import", facts, WARNING, text, fix)
    folders = by_folder(step["mapped"])
    files = "; ".join(f"{folder}: {names}" for folder, names in folders.items())
    text = f"{package} was imported first, and had loaded of cuDNN then: {files or 'nothing'}"
    return finding_of("library.import", facts, OK, text)


def _judge_failed_load(facts: LibraryFacts) -> Finding:
    error = facts.loaded["error"]
    message = f"no libcudnn can be used: {facts.loaded['message']}"
    text, *details = [line.strip() for line in message.splitlines()]
    check, lines = "library.loaded", tuple(details)
    if error == "MixedLibrariesError":
        check, lines = "library.mixed", tuple(facts.lines.values())
    return Finding(check, BROKEN, text, _fix_of_libraries(facts), lines, {"error": error})


def _judge_library_in_use(facts: LibraryFacts) -> Iterator[Finding]:
    loaded, lines = facts.loaded, tuple(facts.lines.values())
    how = f"found through {loaded['how']}"
    if loaded["how"] == "already loaded":
        how = "which was already loaded"
    cuda = format_cuda_version(loaded["cudart"])
    text = f"cuDNN {loaded['version']} is in use: {loaded['path']}, {how}, built with CUDA {cuda}"
    plain = {name: value for name, value in loaded.items() if name != "mapped"}
    yield Finding("library.loaded", OK, text, facts=plain)
    if len(lines) > 1:
        # cuDNN accepts this mixture, or did not check it: it does not check its engine libraries.
        text = "files of several copies of cuDNN are in one process"
        yield Finding("library.mixed", WARNING, text, _fix_of_libraries(facts), lines)
    for copy in facts.copies:
        if copy.path == facts.path:
            yield _judge_parts(facts, copy)
            yield from _judge_replaced_wheel(facts, copy)


def _judge_parts(facts: LibraryFacts, copy: Copy) -> Finding:
    """Compare the versions of the parts with the version that the process has."""
    version, lines = facts.loaded["version"], tuple(facts.lines.values())
    plain = {"versions": dict(copy.parts)}
    if not set(copy.parts.values()) <= {version}:
        text = f"its parts are of several versions: {copy.part_versions}; the process has {version}"
        return Finding("library.parts", BROKEN, text, facts.reinstall(copy), lines, plain)
    missing = facts.loaded.get("missing_parts") or []
    if missing:
        names = ", ".join(f"libcudnn_{part}" for part in missing)
        text = f"it lacks {names}: functions of these parts are refused when they are used"
        return Finding("library.parts", WARNING, text, facts.reinstall(copy), lines, plain)
    text = f"its parts agree: {copy.part_versions or 'cuDNN accepts them'}"
    return Finding("library.parts", OK, text, "", lines, plain)


def _judge_replaced_wheel(facts: LibraryFacts, copy: Copy) -> Iterator[Finding]:
    """Compare the version of a copy's wheel with the version that the process has."""
    wheel, version = facts.wheel(copy), facts.loaded["version"]
    wheel_version = wheel.partition(" ")[2]
    if wheel and not f"{wheel_version}.".startswith(f"{version}."):
        text = (
            f"{wheel} is installed, but the file in use is cuDNN {version}: "
            "another program has replaced it"
        )
        yield Finding("library.wheels", WARNING, text, facts.reinstall(copy))


def _judge_other_copy(loaded: Mapping[str, Any], copy: Copy) -> Finding:
    """Report a copy that is not in use, but that the loader or another package may find."""
    origins = dict(copy.origins)
    facts = {"path": copy.path, "version": copy.version, "found": origins}
    version = loaded.get("version", "")
    text = f"copy, cuDNN {copy}: {copy.path}, found through {', '.join(origins)}"
    if not version or set(origins) == {UNSEARCHED}:
        return finding_of("library.copy", facts, NOTE, f"a {text}")
    text = f"another {text}"
    if major_of(copy.path) != version.partition(".")[0]:
        message = f"{text}; programs ask for it by another name"
        return finding_of("library.copy", facts, NOTE, message)
    if copy.version == version and not copy.is_mixture:
        message = f"{text}; the same version, not in use"
        return finding_of("library.copy", facts, NOTE, message)
    conflict = next(rule for rule in _CONFLICTS if rule.how in ("", *origins))
    message = f"{text}; in use is {version}, {loaded.get('path')}; {conflict.effect}"
    fix = conflict.fix.format(place=origins.get(conflict.how), folder=copy.folder)
    return finding_of("library.copy", facts, WARNING, message, fix)


def _judge_wheels(wheels: tuple[str, ...]) -> Finding:
    """Report several wheels of cuDNN."""
    packages = " ".join(wheel.partition(" ")[0] for wheel in wheels)
    text = f"{' and '.join(wheels)} write the same files, so neither may be complete"
    fix = f"pip uninstall {packages}, then install the one that fits the driver"
    return Finding("library.wheels", WARNING, text, fix)


def _judge_dependency(
    dependency: Dependency, name: str, path: str, hidden_path: str, *, is_on_gpu: bool
) -> Finding:
    """Return whether cuDNN finds a library that it opens by name."""
    title = dependency.title
    check = f"library.{title.lower()}"
    facts = {"name": name, "path": path, "aside": hidden_path}
    if path:
        return finding_of(check, facts, OK, f"{title} is there: {path}")
    verdict = dependency.verdict if is_on_gpu else NOTE
    if hidden_path:
        text = f"{title} is at {hidden_path}, where cuDNN does not look; {dependency.use}"
        fix = f"add {os.path.dirname(hidden_path)} to LD_LIBRARY_PATH"
        return finding_of(check, facts, verdict, text, fix)
    suffix = "-cu12" if name.endswith(".12") else ""  # The wheels for CUDA 13 have none.
    text = f"{title} ({name}) was not found; {dependency.use}"
    return finding_of(check, facts, verdict, text, f"pip install {dependency.package}{suffix}")


def _fix_of_libraries(facts: LibraryFacts) -> str:
    """Return the advice if no libcudnn can be used, or if parts of several are in the process."""
    error = facts.loaded.get("error")
    for package, step in facts.imports.items():
        if step.get("crashed"):  # The probe did not get as far as libcudnn.
            return f"update or reinstall {package}, or leave out --import {package}"
    if error == "ProbeError":
        return f"{_SET} to another copy, and update or reinstall this one"
    for copy in facts.copies:
        if copy.is_mixture and copy.folder in facts.lines:
            return facts.reinstall(copy)
    if error in (None, "MixedLibrariesError"):
        return _fix_of_mixture(facts)
    return _fix_of_failed_load(facts)


def _fix_of_mixture(facts: LibraryFacts) -> str:
    """Return the advice about files of several copies in one process."""
    stray_folders = set(facts.lines) - {os.path.dirname(facts.path)}
    preloaded = by_folder(split_path(facts.environment, "LD_PRELOAD"))
    if any(os.path.realpath(folder) in stray_folders for folder in preloaded):
        return _NO_PRELOAD
    for folder in split_path(facts.environment, "LD_LIBRARY_PATH"):
        if os.path.realpath(folder) in stray_folders:
            return f"take {folder} out of LD_LIBRARY_PATH"
    if facts.imports:
        packages = ", ".join(facts.imports)
        return (
            f"{_SET} to the folder that {packages} loaded from, "
            "or make a handle before importing it"
        )
    return f"{_SET} to the folder of one copy, and remove the other where the loader finds it"


def _fix_of_failed_load(facts: LibraryFacts) -> str:
    """Return the advice if no libcudnn could be loaded."""
    if facts.environment.get(LIBRARY_VARIABLE):
        return f"unset {LIBRARY_VARIABLE}, or set it to a folder that has libcudnn.so.9"
    message = facts.loaded.get("message", "")
    missing = _MISSING.search(message)
    if missing:
        return f"install the package of your system that has {missing[1]}"
    copies = [copy for copy in facts.copies if major_of(copy.path) == MAJOR]
    for copy in copies:
        if copy.path in message:  # It was found, and cannot be loaded.
            return facts.reinstall(copy)
    # cuda-pathfinder looks for cuBLAS first, and names it also if there is no cuDNN either.
    has_searched_copy = any(set(copy.origins) - {UNSEARCHED} for copy in copies)
    if "libcublas" in message and has_searched_copy:
        return "pip install --force-reinstall nvidia-cublas-cu12 (for CUDA 13: nvidia-cublas)"
    if copies and facts.loaded.get("error") == "LibraryNotFoundError":
        return f"{_INSTALL}, or {_SET}={copies[0].folder} to use the copy that is there"
    return _INSTALL
