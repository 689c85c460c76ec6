"""Links within README and docs lead somewhere: to a file that exists, a heading that it has, a name that is public."""

from __future__ import annotations

import pytest
from markdown_pages import GENERATED, PAGES, ROOT, Page, anchor_of

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
    source = GENERATED.get(within)
    if source is not None:
        target = ROOT / source
    if not target.exists():
        return f"there is no {within}"
    if page.path.is_relative_to(ROOT / "docs") and target.is_dir():
        return f"{within} is a folder, which the built pages have not"
    if anchor and target.suffix == ".md" and source is None and anchor not in Page(target).anchors:
        return f"{within} has no heading #{anchor}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    broken = [f"{page}:{line}: {link}: {why}" for line, link in page.links if (why := why_broken(page, link))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_roles_name_what_is_public(page):
    for line, name in page.roles:
        first, *rest = name.split(".")
        found: object = cudnnlite
        assert first == "cudnnlite", f"{page}:{line}: {name}: not of this package"
        for part in rest:
            assert hasattr(found, part), f"{page}:{line}: there is no {name}"
            found = getattr(found, part)


def test_there_are_links():
    assert sum(len(page.links) for page in PAGES) > 20


def test_anchors_and_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("markdown_pages.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(
        "# A `b_c`, d's\n## E\n### E\n(here)=\ntext [a\nb](x.md#y), ![c](<p.png>) `[no](no.md)` [w](https://x.y)\n"
        "```text\n# no\n[no](no.md)\n```\n[ref]: r.md\n{py:func}`f <cudnnlite.g>` {py:class}`~cudnnlite.H.i`\n"
    )
    page = Page(path)
    assert page.anchors == {"a-b_c-ds", "e", "e-1", "here"}
    assert page.links == [(5, "x.md#y"), (6, "p.png"), (11, "r.md")]
    assert page.roles == [(12, "cudnnlite.g"), (12, "cudnnlite.H.i")]
    assert anchor_of("The [x](y) – 2 & 3") == "the-x--2--3"


def test_broken_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("markdown_pages.ROOT", tmp_path)
    monkeypatch.setitem(why_broken.__globals__, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text("# Here\n")
    page = Page(path)
    links = ("", "#here", "page.md#here", "none.md", "#none", "page.md#none", "../x.md", "/page.md")
    assert [bool(why_broken(page, link)) for link in links] == [False] * 3 + [True] * 5
