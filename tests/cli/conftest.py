"""What the tests of the command line share: its parser."""

from collections.abc import Iterator
from functools import cache

import pytest
from typer.main import get_command


@pytest.fixture(scope="module", autouse=True)
def parser_made_once() -> Iterator[None]:
    """Let `CliRunner` make the parser of the commands once, which takes 40 ms, and not each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield
