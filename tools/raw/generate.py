"""Generate ``enums.py``, ``types.py``, ``functions.py``, ``signatures.py`` and ``attributes.py`` from NVIDIA's headers.

``python -m tools.raw.generate`` writes them; ``--check`` only compares and prints what would
change. The headers are those of the cuDNN wheel unless ``--headers`` names a folder. Needs libclang
and ruff, which the ``dev`` extra installs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

from tools.raw.emit import emit
from tools.raw.parse import HeaderError, parse_headers, read_version

PACKAGE = Path(__file__).parents[2] / "cudnnlite" / "_raw"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for drift, 2 where the headers cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.raw.generate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--headers", type=Path, help="folder with cudnn.h (default: found by cuda-pathfinder)"
    )
    parser.add_argument(
        "--output", type=Path, default=PACKAGE, help="folder of the generated files"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and print a diff on drift"
    )
    options = parser.parse_args(arguments)
    try:
        directory = (options.headers or find_headers()).resolve()
        if options.check and not _same_version(directory, options.output):
            return 1
        files = emit(parse_headers(directory))
    except HeaderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.check:
        return _check(files, options.output)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.output / name).write_text(text, encoding="utf-8")
        print(options.output / name)
    return 0


def find_headers() -> Path:
    """Return the folder of the installed cuDNN's headers."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudnn")
    if found is None:
        raise HeaderError("no cuDNN headers found; install nvidia-cudnn-cu12 or pass --headers")
    return Path(found)


def _same_version(directory: Path, output: Path) -> bool:
    """Say so if the headers are not of the version that the files were generated from: a diff would mean little."""
    types = output / "types.py"
    written = (
        re.search(r"^HEADER_VERSION = (\d+)$", types.read_text(encoding="utf-8"), re.M)
        if types.exists()
        else None
    )
    installed = read_version(directory)
    if written is None or int(written[1]) == installed:
        return True
    expected = _dotted(int(written[1]))
    print(
        f"The files in {output} were generated from cuDNN {expected}, but the headers in {directory} are cuDNN "
        f"{_dotted(installed)}.\nInstall the pinned version (pip install 'nvidia-cudnn-cu12=={expected}.*') to check, "
        "or run without --check to move to the new one.",
        file=sys.stderr,
    )
    return False


def _dotted(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _check(files: dict[str, str], output: Path) -> int:
    drift = False
    for name, text in files.items():
        path = output / name
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current != text:
            drift = True
            sys.stdout.writelines(
                difflib.unified_diff(
                    current.splitlines(True), text.splitlines(True), str(path), f"generated {name}"
                )
            )
    if drift:
        print("Run python -m tools.raw.generate to update the files.", file=sys.stderr)
    return int(drift)


if __name__ == "__main__":
    raise SystemExit(main())
