"""Links within README and docs lead to an existing file, heading or public name."""

from __future__ import annotations

from in_one import in_one_test
from markdown_pages import PAGES, ROOT, Page

import cudnnlite


def why_broken(page: Page, link: str) -> str:
    """Return what is wrong with a link on a page; empty if nothing is."""
    name, _, anchor = link.partition("#")
    if name.startswith("/"):
        return "absolute: it works on no other host"
    target = (page.path.parent / name).resolve() if name else page.path
    try:
        within = target.relative_to(ROOT).as_posix()
    except ValueError:
        return "leads out of the repository"
    if not target.exists():
        return f"there is no {within}"
    if page.path.is_relative_to(ROOT / "docs") and target.is_dir():
        return f"{within} is a folder, which the built pages have not"
    if anchor and target.suffix == ".md" and anchor not in Page(target).anchors:
        return f"{within} has no heading #{anchor}"
    return ""


@in_one_test(PAGES)
def test_links_lead_somewhere(page):
    broken = [
        f"{page}:{line}: {link}: {why}"
        for line, link in page.links
        if (why := why_broken(page, link))
    ]
    assert not broken, "\n".join(broken)


@in_one_test(PAGES)
def test_roles_name_what_is_public(page):
    for line, name in page.roles:
        first, *rest = name.split(".")
        target: object = cudnnlite
        assert first == "cudnnlite", f"{page}:{line}: {name}: not of this package"
        for part in rest:
            assert hasattr(target, part), f"{page}:{line}: there is no {name}"
            target = getattr(target, part)
