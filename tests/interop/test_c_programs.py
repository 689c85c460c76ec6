"""The C programs of examples/c compile without a warning.

On a GPU they print what the Python programs print.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from migration_programs import FOLDER, NAMES, assert_same_results, run_python

from .c_toolchain import CToolchain

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", NAMES)
def test_the_c_program_can_be_built(toolchain: CToolchain, name: str, tmp_path: Path) -> None:
    toolchain.build(FOLDER / f"{name}.c", tmp_path / name)
    assert (tmp_path / name).stat().st_size


def test_what_is_wrong_with_a_program_is_told(toolchain: CToolchain, tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("#include <cudnn.h>\nint main(void) { return cudnnNoSuchFunction(); }\n")
    with pytest.raises(
        AssertionError, match=r"wrong\.c could not be built:\n\$ [\s\S]*cudnnNoSuchFunction"
    ):
        toolchain.build(source, tmp_path / "wrong")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_c_and_python_print_the_same(toolchain: CToolchain, name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    toolchain.build(FOLDER / f"{name}.c", program)
    in_c, in_python = toolchain.run(program), run_python(name, "cuda")
    assert in_c.splitlines()[0] == in_python.splitlines()[0], "not the same cuDNN"
    assert_same_results(in_c, in_python)
