"""The libcudnn in use, its parts, the other copies on the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite.devices.cuda import format_cuda_version
from cudnnlite.doctor.copies import CudnnCopy
from cudnnlite.doctor.environment import by_folder
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.doctor.places import Place, Reach, preloaded, split_path

# what the loader says where something that is no part of cuDNN is missing
_MISSING = re.compile(r"(?<!\S)\(?(?!libcudnn)(lib\S+\.so\S*): cannot open shared object file")


@dataclass(frozen=True)
class LibraryFacts:
    """What was gathered of libcudnn.

    Attributes
    ----------
    loaded : dict
        The probe's step 'library': path, how, version, ..., or error and message.
    mapped : tuple of str
        The files of cuDNN that the probe's process had loaded in the end.
    imports : dict
        The probe's steps that imported a package first, by the package's name.
    in_use : CudnnCopy or None
        What the files of the loaded one say.
    copies : tuple of CudnnCopy
        All copies that were found, the loaded one among them.
    wheels : tuple of str
        The cuDNN wheels installed in this environment: 'nvidia-cudnn-cu12 9.28.0.42'.
    environment : mapping
        The environment variables.
    versions : dict
        Folder -> what is told of its version, of the folders of `mapped`.
    """

    loaded: Mapping[str, Any]
    mapped: tuple[str, ...] = ()
    imports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_use: CudnnCopy | None = None
    copies: tuple[CudnnCopy, ...] = ()
    wheels: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def judge_libraries(facts: LibraryFacts) -> Iterator[Finding]:
    """Tell what is to be said of libcudnn."""
    yield from _imports(facts)
    yield _loaded(facts)
    yield from _mixture(facts)
    yield from _warnings(facts)
    if facts.in_use is not None and "error" not in facts.loaded:
        yield _parts(facts, facts.in_use)
    yield from _others(facts)
    yield from _copies(facts)
    yield from _wheels(facts)


def _imports(facts: LibraryFacts) -> Iterator[Finding]:
    for package, step in facts.imports.items():
        mapped = _cudnn_files(step.get("mapped", ()))
        plain = {"package": package, "files": mapped}
        if "error" in step:
            message, *rest = str(step["message"]).splitlines() or [""]
            text = f"{package} cannot be imported before cudnnlite: {step['error']}: {message}"
            fix = f"install {package} in this environment, or leave out --import {package}"
            yield Finding("library.import", Verdict.WARNING, text, fix, tuple(rest), plain)
        else:
            noun = "file" if len(mapped) == 1 else "files"
            text = f"{package} was imported first, and had loaded {len(mapped) or 'no'} {noun} of cuDNN then"
            yield Finding("library.import", Verdict.OK, text, lines=tuple(mapped), facts=plain)


def _loaded(facts: LibraryFacts) -> Finding:
    loaded = facts.loaded
    if "error" not in loaded:
        how = "which was already loaded" if loaded["how"] == "already loaded" else f"found through {loaded['how']}"
        text = (
            f"cuDNN {loaded['version']} is in use: {loaded['path']}, {how}, "
            f"built with CUDA {format_cuda_version(loaded['cudart'])}"
        )
        plain = {name: loaded[name] for name in ("path", "version", "number", "how", "cudart")}
        return Finding("library.loaded", Verdict.OK, text, facts=plain)
    message, *rest = str(loaded["message"]).splitlines() or [""]
    causes = [cause for cause in loaded.get("causes", ()) if cause.partition("\n")[0] not in loaded["message"]]
    plain = {"error": loaded["error"], "message": loaded["message"], "causes": causes}
    text = f"{'nothing is known of libcudnn' if _crashed(facts) else 'no libcudnn can be used'}: {message}"
    if loaded["error"] == "MixedLibrariesError":
        return Finding("library.mixed", Verdict.BROKEN, text, _how_to_unmix(facts), _by_folder(facts), plain)
    lines = (line.strip() for line in [*rest, *"\n".join(causes).splitlines()])
    return Finding("library.loaded", Verdict.BROKEN, text, _how_to_find(facts), tuple(filter(None, lines)), plain)


def _crashed(facts: LibraryFacts) -> str:
    """Return the package whose import ended the process, before libcudnn was tried; empty if none did."""
    return next((package for package, step in facts.imports.items() if step.get("crashed")), "")


def _how_to_unmix(facts: LibraryFacts) -> str:
    used = os.path.dirname(os.path.realpath(facts.loaded["path"])) if "path" in facts.loaded else ""
    strays = {os.path.dirname(path) for path in _cudnn_files(facts.mapped)} - {used}
    if fix := _how_to_mend_the_folder(facts):
        return fix
    if any(os.path.dirname(os.path.realpath(path)) in strays for path in _cudnn_files(preloaded(facts.environment))):
        return "unset LD_PRELOAD, or take cuDNN's files out of it"
    for folder in split_path(facts.environment.get("LD_LIBRARY_PATH")):
        if os.path.realpath(folder) in strays:
            return f"take {folder} out of LD_LIBRARY_PATH"
    if facts.imports:
        packages = ", ".join(facts.imports)
        return f"set {LIBRARY_VARIABLE} to the folder that {packages} loaded from, or make a handle before importing {packages}"
    return f"set {LIBRARY_VARIABLE} to the folder of one copy, and remove the other from the loader's way"


def _how_to_find(facts: LibraryFacts) -> str:
    error, message, causes = facts.loaded["error"], facts.loaded["message"], " ".join(facts.loaded.get("causes", ()))
    if package := _crashed(facts):
        return f"update or reinstall {package}, or leave out --import {package}"  # libcudnn was not tried
    if error == "ProbeError":
        return f"set {LIBRARY_VARIABLE} to another copy, and update or reinstall this one"
    if fix := _how_to_mend_the_folder(facts):
        return fix
    if facts.environment.get(LIBRARY_VARIABLE):
        return f"unset {LIBRARY_VARIABLE}, or set it to a folder that has libcudnn.so.9"
    if missing := _MISSING.search(message):
        return f"install the package of your system that has {missing[1]}"
    copies = [copy for copy in facts.copies if copy.major == "9"]
    for copy in copies:
        if copy.path in message:  # it was found, and cannot be loaded
            return _reinstall(copy)
    # cuda-pathfinder looks for cuBLAS first, and complains of that even where there is no cuDNN either
    if "libcublas" in causes and any(copy.reach is not Reach.ELSEWHERE for copy in copies):
        return "pip install --force-reinstall nvidia-cublas-cu12 (for CUDA 13: nvidia-cublas)"
    install = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
    if copies and error == "LibraryNotFoundError":
        return f"{install}, or set {LIBRARY_VARIABLE}={copies[0].folder} to use the copy that is there"
    return install


def _how_to_mend_the_folder(facts: LibraryFacts) -> str:
    """Return what to do where one folder, that was tried, has parts of several versions; empty where none has."""
    tried = {os.path.dirname(path) for path in _cudnn_files(facts.mapped)}
    return next((_reinstall(copy) for copy in facts.copies if copy.is_mixed and copy.folder in tried), "")


def _reinstall(copy: CudnnCopy) -> str:
    package = copy.wheel.partition(" ")[0]
    return f"pip install --force-reinstall --no-deps {package}" if package else f"reinstall cuDNN in {copy.folder}"


def _mixture(facts: LibraryFacts) -> Iterator[Finding]:
    """Tell of several copies in one process: cuDNN accepted them, or did not look, as it does for its engine libraries."""
    lines = _by_folder(facts)
    if "error" not in facts.loaded and len(lines) > 1:
        text, plain = "files of several copies of cuDNN are in one process", {"loaded": _cudnn_files(facts.mapped)}
        yield Finding("library.mixed", Verdict.WARNING, text, _how_to_unmix(facts), lines, plain)


def _warnings(facts: LibraryFacts) -> Iterator[Finding]:
    for text in facts.loaded.get("warnings", ()):
        head, *rest = text.splitlines() or [""]
        if "another cuDNN copy" not in head:  # that is told above
            lines = tuple(line.strip() for line in rest)
            yield Finding("library.warned", Verdict.NOTE, head, lines=lines, facts={"message": text})


def _parts(facts: LibraryFacts, copy: CudnnCopy) -> Finding:
    versions, lines = copy.part_versions, _by_folder(facts)
    plain = {"versions": dict(versions), "loaded": _cudnn_files(facts.mapped)}
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    other = {name: version for name, version in versions.items() if version != facts.loaded["version"]}
    if other:
        text = f"its parts are of several versions: {told}; the process has {facts.loaded['version']}"
        return Finding("library.parts", Verdict.BROKEN, text, _reinstall(copy), lines, plain)
    if not versions:
        text = "its parts state no version; cuDNN accepts those that it has loaded"
        return Finding("library.parts", Verdict.NOTE, text, lines=lines, facts=plain)
    text = f"its parts agree: {told}; those that state no version were accepted by cuDNN's own checks"
    return Finding("library.parts", Verdict.OK, text, lines=lines, facts=plain)


def _others(facts: LibraryFacts) -> Iterator[Finding]:
    """Tell of CUDA's libraries that are loaded and have no finding of their own."""
    known = ("libcudnn", "libcublasLt.", "libnvrtc.")
    others = tuple(path for path in facts.mapped if not os.path.basename(path).startswith(known))
    if others:
        yield Finding("library.others", Verdict.OK, "also loaded, of CUDA", lines=others, facts={"files": list(others)})


def _copies(facts: LibraryFacts) -> Iterator[Finding]:
    used = os.path.realpath(facts.loaded["path"]) if "error" not in facts.loaded else ""
    others = [copy for copy in facts.copies if copy.path != used]
    for copy in others:
        if copy.reach is not Reach.ELSEWHERE:
            yield _copy(facts, copy)
    rest = [copy for copy in others if copy.reach is Reach.ELSEWHERE]
    if rest:
        text = f"{len(rest)} more on this machine, where nothing in this environment looks"
        lines = tuple(f"{copy} ({copy.how})" for copy in rest)
        yield Finding("library.elsewhere", Verdict.NOTE, text, lines=lines, facts={"copies": [_plain(c) for c in rest]})
    if not others:
        yield Finding("library.copies", Verdict.OK, "no other copy of libcudnn was found", facts={"copies": []})


def _copy(facts: LibraryFacts, copy: CudnnCopy) -> Finding:
    """Tell of another copy that the loader, or another package, may come upon."""
    plain, version = _plain(copy), facts.loaded.get("version", "")
    text = f"another copy, cuDNN {copy.told}: {copy.path}, found through {copy.how}"
    if "error" in facts.loaded:
        return Finding("library.copy", Verdict.NOTE, text.replace("another", "a", 1), facts=plain)
    if copy.major != version.partition(".")[0]:
        text = f"{text}; of another major version, which programs ask for by another name"
        return Finding("library.copy", Verdict.NOTE, text, facts=plain)
    if copy.version == version and not copy.is_mixed:
        return Finding("library.copy", Verdict.NOTE, f"{text}; the same version, not in use", facts=plain)
    used = f"in use is {version}, {facts.loaded['path']}"
    hows = {place.how for place in copy.places}
    if "LD_LIBRARY_PATH" in hows:
        folder = next(place.folder for place in copy.places if place.how == "LD_LIBRARY_PATH")
        why = "the loader looks there first for what cuDNN opens by name, and may mix the two"
        fix = f"take {folder} out of LD_LIBRARY_PATH"
    elif "LD_PRELOAD" in hows:
        why, fix = "every program started from here loads it first", "unset LD_PRELOAD, or take cuDNN's files out of it"
    elif "CUDNN_PATH" in hows:
        why = "CUDNN_PATH names it, but is looked at after the wheels, conda and the loader"
        fix = f"set {LIBRARY_VARIABLE}={copy.folder} to use it, or unset CUDNN_PATH"
    elif copy.reach is Reach.LOADER:
        why = "a program or package that asks the loader for libcudnn gets that one"
        fix = f"remove one of the two, or set {LIBRARY_VARIABLE} to the folder of the one to use"
    else:
        why = "a package that searches there gets that one, and one process cannot hold both"
        fix = f"set {LIBRARY_VARIABLE}={copy.folder} where the package that brought it is used too, or install one version"
    return Finding("library.copy", Verdict.WARNING, f"{text}; {used}; {why}", fix, facts=plain)


def _wheels(facts: LibraryFacts) -> Iterator[Finding]:
    if len(facts.wheels) > 1:
        text = f"{' and '.join(facts.wheels)} are installed together; both write the same files, so neither may be complete"
        names = " ".join(wheel.partition(" ")[0] for wheel in facts.wheels)
        fix = f"pip uninstall {names}, then install the one that fits the driver"
        yield Finding("library.wheels", Verdict.WARNING, text, fix, facts={"wheels": list(facts.wheels)})
    copy, version = facts.in_use, facts.loaded.get("version", "")
    if copy is None or not version or len(facts.wheels) > 1:
        return
    package, _, stated = copy.wheel.partition(" ")
    if stated and not f"{stated}.".startswith(f"{version}."):
        text = f"{copy.wheel} lists the file in use, which is cuDNN {version}: something has replaced it"
        fix = f"pip install --force-reinstall --no-deps {package}"
        yield Finding("library.wheels", Verdict.WARNING, text, fix, facts={"wheels": list(facts.wheels)})


def _by_folder(facts: LibraryFacts) -> tuple[str, ...]:
    """Return a line for each folder that files of cuDNN are loaded from, with its version."""
    return tuple(
        f"{folder} ({facts.versions.get(folder) or 'of unknown version'}): {names}"
        for folder, names in by_folder(_cudnn_files(facts.mapped)).items()
    )


def _cudnn_files(paths: Any) -> list[str]:
    return [path for path in paths if os.path.basename(path).startswith("libcudnn")]


def _plain(copy: CudnnCopy) -> dict[str, Any]:
    return {
        "path": copy.path,
        "version": copy.version,
        "version_from": copy.version_from,
        "parts": dict(copy.part_versions),
        "wheel": copy.wheel,
        "found": [_place(place) for place in copy.places],
    }


def _place(place: Place) -> dict[str, str]:
    return {"folder": place.folder, "how": place.how, "reach": place.reach.value}
