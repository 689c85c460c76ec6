"""`cudnnlite cache record`: make a file of the database of choices, or install one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from cudnnlite.autotune.database import install_database, record_database
from cudnnlite.bench.lists import LISTS, problems_of_list
from cudnnlite.bench.networks import network_names, network_problems
from cudnnlite.cli.common import (
    DeviceOption,
    chosen_device,
    failure,
    misuse,
    path,
    report_errors,
    say,
    tell,
)
from cudnnlite.devices import choice
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import NoDeviceError
from cudnnlite.problems.problem import Problem
from cudnnlite.search.database import read_database
from cudnnlite.texts import counted

_ALL = "all"
# The lists whose names are not those of networks.
_LISTS = tuple(name for name in LISTS if name not in network_names())


def record(
    file: Annotated[
        Path,
        typer.Argument(
            parser=path, help="The file to write, or with --install the one to install."
        ),
    ],
    lists: Annotated[
        str | None,
        typer.Option(
            "--list",
            metavar="NAMES",
            help="Networks, separated by commas: all, "
            f"{', '.join(network_names())}; or lists: {', '.join(_LISTS)}.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Begin no other problem after so long; run it again to go on."),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Measure nothing: let this user's calls use the file.")
    ] = False,
    device: DeviceOption = None,
) -> None:
    """Measure the layers of networks on a GPU, and write the choices to a file of the database.

    A file that is there is continued.  Calls that name no algorithm use the choices of installed
    files, if no tuner has one, on the same architecture with the same minor version of cuDNN.
    """
    has_lists = lists is not None
    installs_with_seconds = install and seconds is not None
    if install == has_lists or installs_with_seconds:
        raise misuse("record needs --list NAMES, perhaps with --seconds, or --install alone")
    with report_errors():
        if install:
            target = install_database(file)
            database = read_database(target)
            say(
                f"{counted(len(database), 'choice')} for {database.gpu} with cuDNN "
                f"{database.cudnn} installed as {target}"
            )
            return
        assert lists is not None
        problems = _problems_of(lists.split(","))
        begin = time.perf_counter()
        with Handle(_device_of(chosen_device(device))) as handle:
            recorded = record_database(handle, problems, file, seconds, tell)
        say(
            f"{file}: {recorded.num_new} new choices in {time.perf_counter() - begin:.0f} s, "
            f"{recorded.num_old} were there, {recorded.num_failed} problems without a choice, "
            f"{recorded.num_left} left"
        )


def _device_of(device: str) -> Device:
    """Return the device that a name stands for; end the command if there is no such GPU.

    `auto` does not fall back to the emulated device here, which `record_database` refuses.
    """
    kind, index = choice.parse_device(device, choice.DEVICE_VARIABLE)
    try:
        return choice.devices.get("cuda" if kind == "auto" else kind, index)
    except NoDeviceError as error:
        raise failure(f"record needs a GPU: {error}") from error


def _problems_of(names: list[str]) -> Iterable[Problem]:
    """Return the problems of networks and lists by their names."""
    if names == [_ALL]:
        return network_problems()
    allowed = (*network_names(), *_LISTS)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise misuse(f"--list {','.join(unknown)}; allowed: {_ALL}, {', '.join(allowed)}")
    networks = [name for name in names if name in network_names()]
    problems = [*network_problems(networks)] if networks else []
    for name in names:
        if name not in networks:
            problems += (item.problem for item in problems_of_list(name))
    return problems
