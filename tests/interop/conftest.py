"""What the tests of C programs share."""

from __future__ import annotations

import pytest

from cudnnlite._raw.library import load_library

from .c_toolchain import CToolchain, ToolchainError


@pytest.fixture(scope="module")
def toolchain() -> CToolchain:
    """What compiles C here, or a skip with what is missing."""
    try:
        return CToolchain(load_library())
    except ToolchainError as error:
        pytest.skip(str(error))
