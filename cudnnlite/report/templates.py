"""Pages of HTML that are made of Jinja templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cudnnlite.arguments import refused_as
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.files import write_named_file
from cudnnlite.texts import printable


def template_environment(package: str, page: str, filters: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the environment of a package's templates, with filters and `printable`.

    `page` names the page in the MissingPackageError that is raised if jinja2 is missing.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(
            f"{page} needs jinja2 ({error}): pip install 'cudnnlite[report]'"
        ) from error
    environment = Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"printable": printable, **filters}
    return environment


def write_page(path: Path, page: str) -> None:
    """Write a page; ArgumentError if the file cannot be written."""
    with refused_as(ArgumentError, f"path={str(path)!r} cannot be written"):
        write_named_file(path, page.encode("utf-8", errors="replace"))
