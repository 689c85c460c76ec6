"""Keep what pictures need of a run that `cudnnlite bench` saved.

    python -m tools.benchmarks.keep_run RUN.json tools/benchmarks/data/bench_NAME.json

Leaves out paths, names of kernels, the lines that repeat rows, and values at their defaults.
`python docs/draw.py rooflines` draws what is kept.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from cudnnlite.workbench.bench.rows import FORMAT, VERSION, BenchRow, BenchRun, load_run

_FACTS = ("device", "cuDNN", "cudnnlite", "driver", "time", "has real timing", "peaks", "roofs")
_FIELDS_LEFT_OUT = ("line", "kernels")


def kept(run: BenchRun) -> str:
    """Return a run as the text of a file that `load_run` reads, a row a line."""
    facts = {name: run.facts[name] for name in _FACTS if name in run.facts}
    rows = ",\n".join(json.dumps(_kept_row(row)) for row in run.rows)
    head = json.dumps({"format": FORMAT, "version": VERSION, "facts": facts})
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'


def _kept_row(row: BenchRow) -> dict[str, Any]:
    plain = row.to_plain()
    defaults = {item.name: item.default for item in fields(BenchRow)}
    return {
        name: value
        for name, value in plain.items()
        if name not in _FIELDS_LEFT_OUT
        and (defaults[name] is MISSING or getattr(row, name) != defaults[name])
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_text(kept(load_run(options.run)), encoding="utf-8")


if __name__ == "__main__":
    main()
