"""Check of the database of choices: whether its rows are used on this machine's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cudnnlite.doctor.finding import NOTE, OK, WARNING, Finding
from cudnnlite.doctor.probe import Probe
from cudnnlite.errors import ArgumentError, TuningCacheError
from cudnnlite.search.database import (
    Database,
    current_setting,
    database_files,
    merged_families,
    parse_setting,
    read_database,
    version_of,
)
from cudnnlite.texts import counted

_HOW_TO_RECORD = "cudnnlite cache record FILE --list all, and --install"


def judge_database(probe: Probe) -> Iterator[Finding]:
    """Report files that are no database, and how many choices the GPUs use.

    Without a GPU nothing is said of the choices, which nobody uses.
    """
    try:
        folder = parse_setting(current_setting())
    except ArgumentError:
        return  # The check of the environment variables reports it.
    if folder is None:
        return
    databases: list[Database] = []
    for path in database_files(folder):
        try:
            databases.append(read_database(path))
        except (ArgumentError, TuningCacheError) as error:
            yield Finding("database.file", WARNING, str(error), "remove it, or record it again")
    cudnn_number = probe.step("library").get("number", 0)
    if cudnn_number:
        yield from _judge_use(databases, version_of(cudnn_number), probe)


def _judge_use(databases: Sequence[Database], version: str, probe: Probe) -> Iterator[Finding]:
    """Report for each compute capability here how many choices are used."""
    capabilities = {capability for _, capability, *_ in probe.step("cuda").get("devices", ())}
    origins = dict.fromkeys(
        f"cuDNN {database.cudnn} and compute capability {database.compute_capability}"
        for database in databases
    )
    for capability in sorted(capabilities):
        here = f"cuDNN {version} and compute capability {capability}"
        used = [database for database in databases if database.is_for(capability, version)]
        num_rows = sum(map(len, merged_families(used).values()))
        if num_rows:
            text = f"{counted(num_rows, 'choice')} of the database for {here}"
            yield Finding("database.use", OK, text)
            continue
        text = f"no choice of the database is for {here}"
        if origins:
            text += f"; they are for {', '.join(origins)}"
        yield Finding("database.use", NOTE, text, _HOW_TO_RECORD)
