"""The packages that cudnnlite needs, for messages where one of them is missing."""

from __future__ import annotations

import re

# By the name of an import, the names of pip's packages that bring it.
_DISTRIBUTIONS = {"cuda": ("cuda-core", "cuda-pathfinder"), "ml_dtypes": ("ml-dtypes", "ml_dtypes")}

_COMMAND_LINE = re.compile(r"extra == ['\"]cli['\"]")


def required_packages() -> dict[str, str]:
    """Return the requirements of cudnnlite and of its command line, by the name of the package.

    For example {'rich': 'rich>=13', ...}; empty if pip did not install cudnnlite itself.
    """
    from importlib import metadata

    try:
        requirements = metadata.requires("cudnnlite") or []
    except metadata.PackageNotFoundError:
        return {}
    packages = {}
    for requirement in requirements:
        package, _, condition = (part.strip() for part in requirement.partition(";"))
        if not condition or _COMMAND_LINE.fullmatch(condition):
            packages[re.split(r"[^\w.-]", package)[0]] = package
    return packages


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
    """Return the command that installs packages; it replaces packages that are damaged."""
    packages = " ".join(f"'{requirement}'" for requirement in requirements.values())
    if requirements.keys() <= missing_packages().keys():
        return f"pip install {packages}"
    return f"pip install --force-reinstall {packages}"


def packages_behind(error: ImportError) -> dict[str, str]:
    """Return the packages to install after a failed import; none if cudnnlite does not need it."""
    module = (error.name or "").partition(".")[0]
    names = _DISTRIBUTIONS.get(module, (module,))
    required = required_packages()
    imported = {name: required[name] for name in names if name in required}
    if not imported:
        return {}
    return missing_packages() or imported
