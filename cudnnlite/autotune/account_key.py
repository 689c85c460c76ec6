"""`account_key`: the secret by which a user's own compiled plans are known."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from cudnnlite.warn import log

_NAME = "plan_key"
_BYTES = 32


def account_key() -> bytes | None:
    """Return the user's key, which is made at the first use; None if there can be none.

    It is in the user's cache folder, apart from every tuning cache, so that it does not travel with
    one.  A file that others can read or write, or that another user owns, is not used.
    """
    try:
        file = _key_file()
        if not file.exists():
            _make_key(file)
        status = file.stat()
        is_private = status.st_uid == os.geteuid() and not status.st_mode & (
            stat.S_IRWXG | stat.S_IRWXO
        )
        key = file.read_bytes()
    except OSError as error:
        log.info("compiled plans are not kept: %s", error)
        return None
    if not is_private or len(key) != _BYTES:
        log.warning("compiled plans are not kept: %s is not a private key of this user", file)
        return None
    return key


def _key_file() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("cudnnlite", appauthor=False) / _NAME


def _make_key(file: Path) -> None:
    """Write a new key, unless another process does so at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{_NAME}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as new:
            new.write(secrets.token_bytes(_BYTES))
            new.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # the key of another process is the user's, too
            os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
