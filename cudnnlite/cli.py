"""The command line: `cudnnlite demo`, `cudnnlite info`."""

from __future__ import annotations

import json
import os
import warnings
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="The thin, Pythonic way to call NVIDIA cuDNN's descriptor API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="cuda, cuda:1, emulated, or auto: CUDA if there is a GPU.  [default: $CUDNNLITE_DEVICE, or auto]"
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("cudnnlite"))
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
        raise _failure(f"--output {output}: a .png in a folder that exists is needed")
    try:
        from cudnnlite.demo import detect_edges, load_photograph, save_side_by_side

        photograph = load_photograph()
    except ImportError as error:
        raise _failure(f"the demo needs matplotlib and Pillow, the extra 'examples' ({error})") from error
    import cudnnlite as dnn

    with _handle(device) as handle:
        library = handle.api.library
        typer.echo(f"device     {handle.device}{_emulated_note(handle)}")
        typer.echo(f"cudnnlite  {dnn.__version__}")
        typer.echo(f"cuDNN      {library.version_text}  {library.path} (found through {library.how})")
        typer.echo(f"photograph {photograph.shape[1]} x {photograph.shape[0]} pixels, portrait of Grace Hopper\n")
        edges, found, choice = detect_edges(handle, photograph)
        typer.echo(f"{found}\n\nchosen     {choice}")
        typer.echo(f"workspace  {handle.workspace}")
    save_side_by_side(output, photograph, edges)
    typer.echo(f"written    {output.resolve()}")


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False) -> None:
    """Print the libcudnn in use and how it was found, versions, devices, and the environment variables that matter."""
    from cudnnlite.environment import gather

    facts = gather()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print_facts(facts)
    if "error" in facts["library"]:
        raise typer.Exit(1)


def _print_facts(facts: dict[str, Any], indent: str = "") -> None:
    """Print nested facts as indented lines, unwrapped, so that paths can be copied and piped."""
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            typer.echo(f"{indent}{name}")
            _print_facts(value, indent + "  ")
        else:
            typer.echo(f"{indent}{name}: {'none' if value == {} else value}")


def _handle(device: str | None) -> Any:
    """Return a handle on the device that the user chose; 'auto' if nothing was chosen."""
    import cudnnlite as dnn

    chosen = device or os.environ.get("CUDNNLITE_DEVICE") or "auto"
    try:
        with warnings.catch_warnings(record=True) as told:
            handle = dnn.Handle(chosen)
        for warning in told:
            typer.echo(f"{warning.message}", err=True)
        return handle
    except dnn.CudnnliteError as error:
        raise _failure(str(error)) from error


def _emulated_note(handle: Any) -> str:
    return "  (NumPy computes; its times are not a GPU's)" if handle.device.kind == "emulated" else ""


def _failure(message: str) -> typer.Exit:
    typer.echo(f"cudnnlite: {message}", err=True)
    return typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app()
