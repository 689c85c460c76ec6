"""`write_atomically`: a file that is whole or not there, whatever ends the process."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_atomically(file: Path, data: bytes) -> None:
    """Write or replace a file in one step, and make its folder if necessary.

    OSError if that fails.  A process that is killed meanwhile leaves a draft, `.*.tmp`.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        # exist_ok would suppress any OSError, also one of a signal handler.
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True)
        with open(draft, "xb") as draft_file:
            draft_file.write(data)
            draft_file.flush()
            os.fsync(draft_file.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)  # it is there after a failure
