"""The packages that cudnnlite needs, for messages where one of them is missing."""

from __future__ import annotations

import re

# Packages that are imported by another name than pip knows them by.
_DISTRIBUTIONS = {"cuda": ("cuda-core", "cuda-pathfinder"), "ml_dtypes": ("ml-dtypes", "ml_dtypes")}


def required_packages() -> dict[str, str]:
    """Return what pip installs with cudnnlite: by name, what it is asked for.

    {'rich': 'rich>=13', ...}; empty where cudnnlite itself was not installed by pip.
    """
    from importlib import metadata

    try:
        requirements = metadata.requires("cudnnlite") or []
    except metadata.PackageNotFoundError:
        return {}
    always = [requirement for requirement in requirements if ";" not in requirement]
    return {re.split(r"[^\w.-]", requirement)[0]: requirement for requirement in always}


def missing_packages() -> dict[str, str]:
    """Return those of `required_packages` that are not installed."""
    from importlib import metadata

    missing = {}
    for name, requirement in required_packages().items():
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing[name] = requirement
    return missing


def how_to_install(requirements: dict[str, str]) -> str:
    """Return the command that installs packages, also over what is left of them."""
    quoted = " ".join(f"'{requirement}'" for requirement in requirements.values())
    again = "" if requirements.keys() <= missing_packages().keys() else "--force-reinstall "
    return f"pip install {again}{quoted}"


def packages_behind(error: ImportError) -> dict[str, str]:
    """Return the packages to install after an import failed; none where it is of none of ours."""
    module = (error.name or "").partition(".")[0]
    names = _DISTRIBUTIONS.get(module, (module,))
    required = required_packages()
    imported = {name: required[name] for name in names if name in required}
    return imported and (missing_packages() or imported)
