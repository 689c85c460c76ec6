"""The common parts of the commands: messages, text for pipes, checks of the files to write."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from cudnnlite.arguments import absolute_path, path_of, shown
from cudnnlite.cli import ctrl_c
from cudnnlite.devices.device_choice import (
    DEVICE_VARIABLE,
    EMULATED_HANDLE,
    parse_device,
    visible_gpus,
)
from cudnnlite.errors import ArgumentError, CudnnliteError

# Exit codes; 1 is any other error.
USAGE = 2
SOME_FAILED = 3
INTERRUPTED = ctrl_c.INTERRUPTED
CLOSED_PIPE = 141
_COMMANDS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")  # but tab, newline


def path(text: str) -> Path:
    """Return a path of the command line.

    An empty text, as a variable that is not set leaves, is refused: it is not the current folder.
    """
    try:
        return path_of(text, expand=False)  # the shell expands `~` itself
    except ArgumentError as error:
        raise typer.BadParameter(f"{shown(text)} is not a path") from error


CACHE_DEFAULT = "$CUDNNLITE_TUNING_CACHE, or a folder in your cache folder"
# what several commands have; --help shows it together
_where = partial(typer.Option, rich_help_panel="Where")
CacheOption = Annotated[
    Path | None,
    _where(
        "--cache",
        parser=path,
        metavar="FOLDER",
        help="The cache's folder.",
        show_default=CACHE_DEFAULT,
    ),
]
DeviceOption = Annotated[
    str | None,
    _where(
        help="cuda, cuda:1, emulated, or auto: CUDA if there is a GPU.",
        show_default="$CUDNNLITE_DEVICE, or auto",
    ),
]
JSONOption = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel="Output")
]


def say(text: str, *, styled: bool = False) -> None:
    """Print to stdout, with our colours if `styled`; then the rest of the text must be harmless."""
    _write(text if styled else harmless(text), sys.stdout)


def tell(message: str) -> None:
    """Print a message to stderr, as every command of Unix does: with the program's name."""
    _write(harmless(f"cudnnlite: {message}"), sys.stderr)


def failure(message: str) -> typer.Exit:
    """Say what went wrong, and return the exception that ends the command with 1."""
    tell(message)
    return typer.Exit(1)


def misuse(message: str) -> typer.Exit:
    """Print a mistake on the command line, and return the exception that ends with code 2."""
    tell(f"{message} (--help lists the options)")
    return typer.Exit(USAGE)


def _write(text: str, stream: Any) -> None:
    if stream is None:  # whoever started this has closed it
        return
    try:
        typer.echo(text, file=stream)
    except OSError as error:
        if stream is not sys.stderr:
            raise typer.Exit(output_lost(error)) from None
        sys.stderr = None  # the output on stdout is useful without it


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal; a closed one is not."""
    return stream is not None and bool(stream.isatty())


def harmless(text: str) -> str:
    """Return a text without control sequences of terminals: names in files may hold anything."""
    return text.translate(_COMMANDS)


def output_lost(error: OSError) -> int:
    """Return the exit code for output that cannot be written.

    The reader has gone, as in `| head`, or the disk is full.
    """
    # The rest of a buffer must not fail again when Python exits.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    try:
        os.write(2, f"cudnnlite: the output cannot be written: {error.strerror}\n".encode())
    except OSError:
        os.dup2(null, 2)
    return 1


@contextmanager
def report_errors() -> Iterator[None]:
    """Tell errors and warnings in a line each: no traceback, no source line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        tell(f"warning: {message}")

    with warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("default", category)
        warnings.showwarning = show
        try:
            yield
        except CudnnliteError as error:
            raise failure(str(error).replace(EMULATED_HANDLE, "--device emulated")) from error
        except MemoryError as error:
            raise failure("there is not enough memory for this") from error
        except OSError as error:
            message = str(error)
            if error.filename:
                message = f"{error.filename}: {error.strerror}"
            raise failure(message) from error


@contextmanager
def report_misuse(where: str = "") -> Iterator[None]:
    """Report an ArgumentError of the block as a mistake on the command line."""
    try:
        yield
    except ArgumentError as error:
        raise misuse(f"{where}{error}") from error


def chosen_device(device: str | None) -> str:
    """Return the device that the user chose; 'auto' if nothing was chosen."""
    if device is not None:
        with report_misuse():
            parse_device(device, "--device")
    return device or os.environ.get(DEVICE_VARIABLE) or "auto"


def is_emulated(device: str) -> bool:
    """Return whether a name of `--device` stands for the emulated device on this machine."""
    kind = device.lower()
    return kind.startswith("emulated") or (kind == "auto" and not visible_gpus())


def check_output(
    option: str, path: Path | None, suffixes: Sequence[str], package: str = ""
) -> None:
    """End the command if a file can not be written later, as far as that can be known.

    The writer needs `package`, which is of the extra 'report'.
    """
    if path is None:
        return
    with report_misuse():
        folder = absolute_path(path, option).parent
    if path.suffix.lower() not in suffixes:
        raise misuse(f"{option} {path}: its name must end in {' or '.join(suffixes)}")
    if not folder.is_dir():
        raise failure(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise failure(f"{option} {path}: cannot be written: it is a folder")
    # The file is replaced, which its folder has to allow.  A link is not followed.
    is_protected = path.exists() and not path.is_symlink() and not os.access(path, os.W_OK)
    if is_protected or not os.access(folder, os.W_OK):
        raise failure(f"{option} {path}: cannot be written")
    if package and find_spec(package) is None:
        raise failure(f"{option} needs {package}: pip install 'cudnnlite[report]'")
