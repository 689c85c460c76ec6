"""`ProgramFolder`: where a traced program is written, and which files there may be replaced."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from cudnnlite.arguments import file_type, refused_as, require_system_error
from cudnnlite.errors import ArgumentError, CudnnliteError
from cudnnlite.workbench.tracing.c_text import string_literal

INPUTS = "inputs"
_MISSING = 0  # the result of `file_type` without a file
PROGRAM = "program.c"
FIRST_LINES = {PROGRAM: b"/* Written by cudnnlite ", "Makefile": b"# Written by cudnnlite "}


class ProgramFolder:
    """A folder with ``program.c``, a ``Makefile``, and the files in ``inputs/`` that it reads.

    An existing file is replaced only if cudnnlite wrote it.  The first line of ``program.c`` and
    ``Makefile`` says so.  A file in ``inputs/`` is replaced if such a ``program.c`` reads it, or if
    its content stays the same.  Symbolic links in the folder are never followed.

    Parameters
    ----------
    path : Path
        The folder, which need not exist.
    label : str
        The name of the folder's option or argument, for messages.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self._label = label

    def check(self) -> None:
        """Refuse the folder if cudnnlite did not write a file that would be replaced.

        Raises
        ------
        ArgumentError
            The message names the folder and the file.
        """
        inputs_type = file_type(self.path / INPUTS, follow=False)
        if inputs_type not in (_MISSING, stat.S_IFDIR):
            self._refuse(INPUTS, "is no folder (symbolic links are not followed)")
        for name, first_line in FIRST_LINES.items():
            self._check_type(name)
            if self._exists(name) and not self._content(name).startswith(first_line):
                self._refuse(name, "was not written by cudnnlite and is not replaced")

    def write(self, files: Mapping[str, bytes]) -> None:
        """Check the files, given by their names in the folder, and write them.

        The folder is made if it does not exist.

        Raises
        ------
        ArgumentError
            `check` refuses the folder, or the system refuses to write.
        """
        self.check()
        old_program = self._content(PROGRAM)
        for name, content in files.items():
            if name in FIRST_LINES:
                continue
            self._check_type(name)
            is_input_of_program = string_literal(name).encode() in old_program
            is_ours = is_input_of_program or self._content(name) == content
            if self._exists(name) and not is_ours:
                self._refuse(
                    name,
                    f"is there already, is not read by a {PROGRAM} of cudnnlite, "
                    "and is not replaced",
                )
        with refused_as(ArgumentError, f"{self._label} cannot be written"):
            for name, content in files.items():
                path = self.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # The file is made anew.  An old one may have hard links, whose content must not
                # change.
                path.unlink(missing_ok=True)
                with path.open("xb") as file:
                    file.write(content)

    def _check_type(self, name: str) -> None:
        kind = file_type(self.path / name, follow=False)
        if kind == stat.S_IFLNK:
            self._refuse(name, "is a symbolic link, which is not followed")
        if kind not in (_MISSING, stat.S_IFREG):
            self._refuse(name, "is no regular file")

    def _exists(self, name: str) -> bool:
        return file_type(self.path / name, follow=False) != _MISSING

    def _content(self, name: str) -> bytes:
        """Return the content of a file; empty if it cannot be read."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            require_system_error(error)
            return b""

    def _refuse(self, name: str, why: str) -> None:
        raise ArgumentError(
            f"{self._label}: {self.path / name} {why}; remove it, or name another folder"
        )


def packaged_file(name: str) -> bytes:
    """Return the content of a file of this package; CudnnliteError if it cannot be read."""
    with refused_as(CudnnliteError, f"cudnnlite/workbench/tracing/{name} cannot be read"):
        return files("cudnnlite.workbench.tracing").joinpath(name).read_bytes()
