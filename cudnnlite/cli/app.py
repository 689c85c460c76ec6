"""The command line: `cudnnlite demo`, `info`, `doctor`, `autotune`, `bench`, `compare`, ..."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cudnnlite._raw.library import load_library
from cudnnlite.cli import autotune, bench, compare, ctrl_c, doctor, plan, trace
from cudnnlite.cli.cache import cache_app
from cudnnlite.cli.common import JSONOption, harmless, output_lost, report_errors, say
from cudnnlite.cli.demo import demo
from cudnnlite.devices.cuda import CudaDevice
from cudnnlite.devices.cuda_facts import cuda_state, format_cuda_version
from cudnnlite.devices.device_choice import DEVICE_VARIABLE, default_device, parse_device
from cudnnlite.errors import CudnnliteError
from cudnnlite.sizes import format_size
from cudnnlite.version import __version__

_PACKAGES = (
    "numpy ml_dtypes cuda-core cuda-bindings cuda-pathfinder nvidia-cudnn-cu12 nvidia-cudnn-cu13"
)
_UsageError: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """The commands; messages about a command line have no control sequences of terminals."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        commands: list[Any] = [self]
        for command in commands:
            for parameter in command.get_params(ctx):
                # A flag takes no value; the help of typer from 0.29.1 on says "<bool>".
                if getattr(parameter, "is_flag", False):
                    parameter.metavar = ""
            commands += getattr(command, "commands", {}).values()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            _add_hint(error)
            error.message = harmless(error.message)
            raise


def _add_hint(error: Any) -> None:
    """Let a message about a command line say what is meant, where that is known."""
    command = error.ctx.info_name if error.ctx is not None else ""
    option = getattr(error, "option_name", "")
    if command == "autotune" and option == "--report":
        error.possibilities = ["--html"]
    elif command == "compare" and option:
        error.possibilities = None
        error.message += "; options of `cudnnlite bench` go behind --"
    elif command == "bench" and "unexpected extra argument" in error.message:
        error.message += "; a list that comes along is named by --list"


app = typer.Typer(
    cls=_Commands,
    help="The thin, Pythonic way to call NVIDIA cuDNN.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=autotune.EXIT_CODES)(autotune.autotune)
app.command(epilog=bench.EXIT_CODES)(bench.bench)
app.command(epilog=compare.EXIT_CODES)(compare.compare)
app.command(epilog=doctor.EXIT_CODES)(doctor.doctor)
app.command(epilog=plan.EXIT_CODES)(plan.plan)
app.command(epilog=trace.EXIT_CODES)(trace.trace)
app.command()(demo)
app.add_typer(cache_app, name="cache")


def _version(is_requested: bool) -> None:
    if is_requested:
        say(__version__)
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def info(as_json: JSONOption = False) -> None:
    """Print the libcudnn in use and how it was found, versions, devices, environment variables."""
    from cudnnlite.workbench.doctor import PYTHON
    from cudnnlite.workbench.doctor.environment import VARIABLES, versions_of

    facts: dict[str, Any] = {
        "cudnnlite": __version__,
        "python": PYTHON,
        "packages": versions_of(_PACKAGES.split()),
    }
    facts["default device"] = default_device()
    for name, describe in (("library", _library), ("cuda", _cuda)):
        try:
            facts[name] = describe()
        except CudnnliteError as error:
            facts[name] = {"error": str(error)}
    facts["environment"] = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if as_json:
        say(json.dumps(facts, indent=2))
    else:
        _print_facts(facts)
    with report_errors():
        parse_device(default_device(), DEVICE_VARIABLE)
    if "error" in facts["library"]:
        raise typer.Exit(1)


def _library() -> dict[str, Any]:
    from cudnnlite.workbench.doctor.environment import by_folder

    library = load_library()
    return {
        "path": library.path,
        "found through": library.how,
        "version": library.version_text,
        "built with CUDA": format_cuda_version(library.cudart_version)
        if library.cudart_version
        else "unknown",
        "parts": by_folder(library.parts()),
    }


def _cuda() -> dict[str, Any]:
    free, total = CudaDevice(0).memory_info()  # NoDeviceError if there is none
    state = cuda_state()
    return {
        "driver supports CUDA": format_cuda_version(state.supports),
        "devices": {
            f"cuda:{index}": f"{facts.name}, compute capability {facts.compute_capability}"
            for index, facts in enumerate(state.devices)
        },
        "memory of cuda:0": f"{format_size(free)} free of {format_size(total)}",
    }


def _print_facts(facts: dict[str, Any], indent: str = "") -> None:
    """Print nested facts as indented lines, unwrapped, so that paths can be copied and piped."""
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            say(f"{indent}{name}")
            _print_facts(value, indent + "  ")
        else:
            say(f"{indent}{name}: {'none' if value == {} else value}")


def run() -> None:
    """Run the command line.

    Ctrl-C raises KeyboardInterrupt in a command, and ends the process quietly after it.
    """
    # A file that is opened later must not become one of the standard streams.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # A character that the terminal's encoding lacks is no reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        ctrl_c.replace(ctrl_c.end_quietly, signal.default_int_handler)
        try:
            app()
        finally:
            ctrl_c.replace(signal.default_int_handler, ctrl_c.end_quietly)
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
    except KeyboardInterrupt:
        sys.exit(ctrl_c.INTERRUPTED)
    except OSError as error:  # of typer's own texts, or of what was still in a buffer
        sys.exit(output_lost(error))
