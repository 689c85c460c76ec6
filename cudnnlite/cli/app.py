"""The command line: `cudnnlite demo`, `info`, `doctor`, `autotune`, `trace`, `cache`."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cudnnlite import ctrl_c
from cudnnlite.cli.autotune import EXIT_CODES, autotune
from cudnnlite.cli.cache import cache_app
from cudnnlite.cli.common import DeviceOption, JSONOption, chosen_device, errors_told, failure, output_lost, say
from cudnnlite.cli.doctor import EXIT_CODES as DOCTORS_EXIT_CODES
from cudnnlite.cli.doctor import doctor
from cudnnlite.cli.trace import EXIT_CODES as TRACES_EXIT_CODES
from cudnnlite.cli.trace import trace
from cudnnlite.version import __version__

app = typer.Typer(
    help="The thin, Pythonic way to call NVIDIA cuDNN's descriptor API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=EXIT_CODES)(autotune)
app.command(epilog=DOCTORS_EXIT_CODES)(doctor)
app.command(epilog=TRACES_EXIT_CODES)(trace)
app.add_typer(cache_app, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
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
def demo(
    output: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("cudnnlite-demo.png"),
    device: DeviceOption = None,
) -> None:
    """Find the edges in a photograph with the algorithm that cudnnFind ranks first; write both side by side."""
    if output.suffix.lower() != ".png" or not output.absolute().parent.is_dir():
        raise failure(f"--output {output}: a .png in a folder that exists is needed")
    try:
        from cudnnlite.cli.demo import detect_edges, load_photograph, save_side_by_side

        photograph = load_photograph()
    except ImportError as error:
        raise failure(f"the demo needs matplotlib and Pillow, the extra 'examples' ({error})") from error
    import cudnnlite as dnn

    with errors_told(), dnn.Handle(chosen_device(device)) as handle:
        library = handle.api.library
        say(f"device     {handle.device}{_emulated_note(handle)}")
        say(f"cudnnlite  {dnn.__version__}")
        say(f"cuDNN      {library.version_text}  {library.path} (found through {library.how})")
        say(f"photograph {photograph.shape[1]} x {photograph.shape[0]} pixels, portrait of Grace Hopper\n")
        edges, found, choice = detect_edges(handle, photograph)
        say(f"{found}\n\nchosen     {choice}")
        say(f"workspace  {handle.workspace}")
    save_side_by_side(output, photograph, edges)
    say(f"written    {output.resolve()}")


@app.command()
def info(as_json: JSONOption = False) -> None:
    """Print the libcudnn in use and how it was found, versions, devices, and the environment variables that matter."""
    from cudnnlite.doctor.environment import gather

    facts = gather()
    if as_json:
        say(json.dumps(facts, indent=2))
    else:
        _print_facts(facts)
    if "error" in facts["library"]:
        raise typer.Exit(1)


def _print_facts(facts: dict[str, Any], indent: str = "") -> None:
    """Print nested facts as indented lines, unwrapped, so that paths can be copied and piped."""
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            say(f"{indent}{name}")
            _print_facts(value, indent + "  ")
        else:
            say(f"{indent}{name}: {'none' if value == {} else value}")


def _emulated_note(handle: Any) -> str:
    return "  (NumPy computes; its times are not a GPU's)" if handle.device.kind == "emulated" else ""


def main() -> None:
    """Run the command line."""
    for descriptor in range(3):  # a file that is opened later must not become one of the standard streams
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal's encoding lacks is no reason to fail
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
