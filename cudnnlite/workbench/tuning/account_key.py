"""`account_key`: the secret by which a user's own compiled plans are known."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from stat import S_IRWXG, S_IRWXO

from cudnnlite.arguments import file_type
from cudnnlite.files import is_own, open_regular
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
        if not file_type(file):
            _make_key(file)
        with open_regular(file, _BYTES) as key_file:
            is_private = is_own(os.fstat(key_file.fileno()), S_IRWXG | S_IRWXO)
            key = key_file.read(_BYTES + 1)
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
