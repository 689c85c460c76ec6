"""Check of the database of choices: whether its rows are used on this machine's GPUs."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Report how many choices are used here; nothing without a GPU, which alone uses them."""
    try:
        folder = parse_setting(current_setting())
    except ArgumentError:
        return  # The check of the environment variables reports it.
    cudnn_number = probe.step("library").get("number", 0)
    capabilities = {capability for _, capability, *_ in probe.step("cuda").get("devices", ())}
    if folder is None or not cudnn_number or not capabilities:
        return
    databases: list[Database] = []
    for path in database_files(folder):
        try:
            databases.append(read_database(path))
        except (ArgumentError, TuningCacheError) as error:
            yield Finding("database.file", WARNING, str(error), "remove it, or record it again")
    version = version_of(cudnn_number)
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
