"""Files as the package reads and writes them: `read_file`, `read_named_file`, `write_atomically`.

A cache folder may have anything in it.  So a file of one is read only if it is a regular file of a
sane size: a pipe waits for somebody who writes, and a link to a device never ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IFLNK, S_IFREG, S_ISREG
from typing import BinaryIO

from cudnnlite.arguments import file_type
from cudnnlite.sizes import format_size

MOST_BYTES = 64 << 20  # of a cache's file: more than any table of results, or plan, takes
_MOST_NAMED_BYTES = 2 << 30  # of a file that a user names: the largest that protobuf writes
_CHUNK_BYTES = 1 << 20


class UnfitFileError(OSError):
    """A file is not read: it is no regular file, or too large."""


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file of a cache folder.

    Raises
    ------
    UnfitFileError
        It is no regular file, or has more than `most_bytes`.
    OSError
        It cannot be opened or read.
    """
    with open_regular(path, most_bytes) as file:
        return _read_up_to(file, most_bytes)


@contextmanager
def open_regular(path: Path, most_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file of a cache folder to read it; links are followed.

    UnfitFileError for any other, and for a file of more than `most_bytes`; OSError if that fails.
    """
    # To open a device may already have an effect, so that its kind is looked at before, too.
    _refuse_unfit(os.stat(path), most_bytes)
    # O_NONBLOCK: another process may have put a pipe there since.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        _refuse_unfit(os.fstat(descriptor), most_bytes)
        yield file


def is_own(status: os.stat_result, forbidden: int) -> bool:
    """Return whether this user owns a file, and nobody has the `forbidden` bits of its mode."""
    return status.st_uid == os.geteuid() and not status.st_mode & forbidden


def read_named_file(path: Path) -> bytes:
    """Return the content of a file that a user names, which may be a pipe, too.

    Raises
    ------
    UnfitFileError
        It has more than 2 GiB, or more than there is memory for.
    OSError
        It cannot be opened or read.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_NAMED_BYTES:
            raise _too_large(_MOST_NAMED_BYTES)
        return _read_up_to(file, _MOST_NAMED_BYTES)


def write_atomically(file: Path, data: bytes) -> None:
    """Write or replace a file in one step, and make its folder if necessary.

    A link at its path is replaced, and the file that it leads to stays.  OSError if that fails.  A
    process that is killed meanwhile leaves a draft, `.*.tmp`.
    """
    # exist_ok would suppress any OSError, also one of a signal handler.
    with suppress(FileExistsError):
        file.parent.mkdir(parents=True)
    _replace(file, data)


def write_named_file(path: Path, data: bytes) -> None:
    """Write or replace a file that a user names, in a folder that exists; OSError if that fails.

    It is replaced in one step, as `write_atomically` does, so that no link is followed.  What is no
    file, such as a pipe, is written to.
    """
    if file_type(path, follow=False) in (0, S_IFREG, S_IFLNK):
        _replace(path, data)
    else:
        path.write_bytes(data)


def _replace(file: Path, data: bytes) -> None:
    draft = file.with_name(f".{file.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(draft, "xb") as draft_file:
            draft_file.write(data)
            draft_file.flush()
            os.fsync(draft_file.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)  # it is there after a failure


def _refuse_unfit(status: os.stat_result, most_bytes: int | None) -> None:
    if not S_ISREG(status.st_mode):
        raise UnfitFileError(errno.EINVAL, "is no regular file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise _too_large(most_bytes)


def _read_up_to(file: BinaryIO, most_bytes: int) -> bytes:
    """Return the rest of a file; UnfitFileError if it is longer, or does not fit into memory."""
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > most_bytes:
                raise _too_large(most_bytes)
            chunks.append(chunk)
        return b"".join(chunks)
    except MemoryError as error:
        chunks.clear()  # so that there is memory for the message
        raise UnfitFileError(errno.EFBIG, "is larger than the memory that is free") from error


def _too_large(most_bytes: int) -> UnfitFileError:
    return UnfitFileError(errno.EFBIG, f"is larger than {format_size(most_bytes)}")
