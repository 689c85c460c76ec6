"""`cudnnlite trace`: run a script, print its C calls, and write the program in C that it is."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from cudnnlite.cli.common import INTERRUPTED, misuse, path, report_errors, report_misuse, say, tell
from cudnnlite.devices.device_choice import DEVICE_VARIABLE

EXIT_CODES = (
    "Ends as the script does: with 0, its own exit code, 1 after an exception, 130 after Ctrl-C."
)


def trace(
    script: Annotated[
        Path, typer.Argument(parser=path, help="The Python script to run.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments; those with dashes after --.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--c",
            metavar="FOLDER",
            parser=path,
            help=(
                "Write program.c, its inputs and a Makefile there; "
                "files of others are not replaced."
            ),
        ),
    ] = None,
) -> None:
    """Run a Python script, and print its C calls of cuDNN with the host's microseconds.

    What the script prints comes first.  Without a GPU, and where $CUDNNLITE_DEVICE is not set, the
    emulated device is taken.
    """
    if not script.is_file():
        raise misuse(f"{script}: there is no such file")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise misuse(f"--c {folder}: is not a folder")
    from cudnnlite.workbench.tracing.folder import ProgramFolder
    from cudnnlite.workbench.tracing.trace import Trace
    from cudnnlite.workbench.tracing.trace import trace as traced

    output = None if folder is None else ProgramFolder(folder, f"--c {folder}")
    if output is not None:  # The check comes before the script, which may take long.
        with report_misuse():
            output.check()
    os.environ.setdefault(DEVICE_VARIABLE, "auto")
    sys.argv, sys.path[:0] = [str(script), *(arguments or ())], [str(script.absolute().parent)]
    code: Any = 0
    calls: Trace | None = None  # None until the trace begins
    # A process that the script forks comes here too. It ends with its own code, without a trace.
    process = os.getpid()
    with report_errors():
        try:
            with traced() as calls:
                # The trace reads the script's arrays at its end. `left` keeps them alive, after an
                # exit by its traceback.
                try:
                    left = runpy.run_path(str(script), run_name="__main__")
                except SystemExit as end:
                    code, left = end.code, end  # type: ignore[assignment]  # noqa: F841
                if os.getpid() != process:
                    sys.exit(code)
        except SystemExit:
            raise
        except BaseException as error:
            traceback.print_exc()
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        if calls is not None and os.getpid() == process:
            say(str(calls))
            if output is not None:
                calls._save_in(output)
                message = f"written to {folder}: the program and what it reads"
                if not len(calls):
                    message += "; the script made no call of cuDNN"
                tell(message)
    sys.exit(code)  # also with a text, which Python prints
