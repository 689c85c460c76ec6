"""`PlanFiles`: compiled plans in the folder of a tuning cache.

A plan is native code, which runs in this process with its rights.  So a plan is restored only if
this user's account has signed it: files that came from elsewhere are not executed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cudnnlite._raw.library import format_version
from cudnnlite.arguments import refused_as, require_system_error
from cudnnlite.errors import TuningCacheError
from cudnnlite.files import UnfitFileError, read_file, write_atomically
from cudnnlite.warn import log
from cudnnlite.workbench.tuning.account_key import account_key
from cudnnlite.workbench.tuning.entries import DeviceIdentity

FOLDER = "plans"
_FORMAT = 1
_SUFFIX = ".plan"
_DRAFT_SECONDS = 3600  # nobody writes for so long
_NO_FILE = (FileNotFoundError, NotADirectoryError)
# Of DeviceIdentity, what compiled code depends on.  It does not depend on the driver.
_DEVICE_FIELDS = ("gpu", "compute_capability", "cudnn", "kind")


class PlanFiles:
    """The compiled plans of a tuning cache, for one device and one version of cuDNN.

    A file's name has the graph, the device with cuDNN's version, and the account that wrote
    it, as digests.  Its first line is a header in JSON, with a signature; the plan follows.  A file
    that is damaged, signed by another account, or cannot be read is as if it was not there, and the
    log says why.

    Parameters
    ----------
    cache : Path
        The folder of the tuning cache.
    device : DeviceIdentity
        The device that plans are for.
    read_only : bool
        Whether no file is written or removed.
    trust_code : bool
        Whether the plans of other accounts are restored, too.
    """

    def __init__(
        self, cache: Path, device: DeviceIdentity, *, read_only: bool, trust_code: bool
    ) -> None:
        self._folder = cache / FOLDER
        self._device = {name: asdict(device)[name] for name in _DEVICE_FIELDS}
        self._device_digest = _digest(json.dumps(self._device, sort_keys=True))
        self._read_only = read_only
        self._trusts = trust_code
        self._key = account_key()
        self._has_told = False  # that the folder cannot be read

    def find(self, subject: str) -> str | None:
        """Return the JSON of the plan for a subject, or None."""
        for file in self._files_of(subject):
            try:
                data = read_file(file)
            except OSError as error:
                self._log_unread(file, error)
                continue
            reason = self._why_not_used(data, subject)
            if reason is None:
                log.debug("a compiled plan is restored from %s", file)
                _, _, plan = data.partition(b"\n")
                return plan.decode("ascii")
            log.info("%s: %s; the plan is made anew", file, reason)
        for other in self._files_of_other_devices(subject):
            log.info(
                "%s: it is for %s; the plan is made anew", other, _device_in_words(_read(other))
            )
        return None

    def _log_unread(self, file: Path, error: OSError) -> None:
        """Log why a file is not read: each file that is unfit, and the first of other reasons."""
        if isinstance(require_system_error(error), _NO_FILE):
            return
        if isinstance(error, UnfitFileError):
            log.info("%s: it %s; the plan is made anew", file, error.strerror)
        elif not self._has_told:
            self._has_told = True
            log.info("%s: %s; compiled plans cannot be read", file, error.strerror)

    def keep(self, subject: str, text: str) -> None:
        """Write the JSON of a plan; a folder that cannot be written is logged."""
        if self._read_only or self._key is None:
            return
        file = self._own_file(subject)
        try:
            write_atomically(file, self._signed(subject, text.encode("ascii"), self._key))
        except (OSError, UnicodeEncodeError) as error:
            log.info("%s: the compiled plan is not kept: %s", file, error)

    def discard(self, subject: str, why: str) -> None:
        """Remove the plans for a subject, and log why."""
        for file in self._files_of(subject):
            log.info("%s: %s; the plan is made anew", file, why)
            if not self._read_only:
                _remove(file)

    def _own_file(self, subject: str) -> Path:
        assert self._key is not None
        name = f"{subject[:40]}-{self._device_digest}-{_account(self._key)}{_SUFFIX}"
        return self._folder / name

    def _files_of(self, subject: str) -> Iterator[Path]:
        """Yield the files that may be used for a subject, this account's first."""
        if self._key is not None:
            yield self._own_file(subject)
        if self._trusts:
            beginning = f"{subject[:40]}-{self._device_digest}-"
            yield from (file for file in self._files() if file.name.startswith(beginning))

    def _files_of_other_devices(self, subject: str) -> list[Path]:
        files = (file for file in self._files() if file.name.startswith(f"{subject[:40]}-"))
        return [file for file in files if self._device_digest not in file.name]

    def _files(self) -> list[Path]:
        """Return the files of all plans; none if the folder cannot be read."""
        try:
            return _files_in(self._folder)
        except OSError as error:
            self._log_unread(self._folder, error)
            return []

    def _signed(self, subject: str, plan: bytes, key: bytes) -> bytes:
        """Return the content of a file."""
        header = {
            "format": _FORMAT,
            "subject": subject,
            "device": self._device,
            "sha256": hashlib.sha256(plan).hexdigest(),
        }
        header["signature"] = _signature(header, key)
        return json.dumps(header).encode("ascii") + b"\n" + plan

    def _why_not_used(self, data: bytes, subject: str) -> str | None:
        """Return why a file's plan is not restored, or None if it is."""
        head, _, plan = data.partition(b"\n")
        try:
            header = json.loads(head)
            signature = header.pop("signature")
            is_for_this = header == {
                "format": _FORMAT,
                "subject": subject,
                "device": self._device,
                "sha256": hashlib.sha256(plan).hexdigest(),
            }
            is_ours = self._key is not None and hmac.compare_digest(
                signature, _signature(header, self._key)
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return "it is damaged"
        if not is_for_this or not plan.isascii():
            return "it is damaged"
        if not (is_ours or self._trusts):
            return "it is not signed by this account"
        return None


def plan_files(cache: Path) -> list[Path]:
    """Return the files of all plans in the folder of a tuning cache, which need not have any.

    TuningCacheError if they cannot be listed.
    """
    with refused_as(TuningCacheError, cache / FOLDER), suppress(*_NO_FILE):
        return _files_in(cache / FOLDER)
    return []


def copy_plans(source: Path, target: Path) -> None:
    """Copy the plans of a cache to another, as they are; TuningCacheError if that fails.

    Their signatures stay: the account that signed them restores them, and no other.
    """
    with refused_as(TuningCacheError, target):
        for file in plan_files(source):
            with _unfit_files_left_out(file):
                write_atomically(target / FOLDER / file.name, read_file(file))


def sign_plans(source: Path, target: Path) -> None:
    """Copy the whole plans of a cache to another, signed by this account.

    TuningCacheError if that fails.
    """
    key = account_key()
    if key is None:
        raise TuningCacheError(f"{target}: this account has no key to sign plans with")
    with refused_as(TuningCacheError, target):
        for file in plan_files(source):
            with _unfit_files_left_out(file):
                _sign_plan(file, target, key)


def _sign_plan(file: Path, target: Path, key: bytes) -> None:
    """Copy a plan to another cache with a new signature; log that a damaged one is left out."""
    data = read_file(file)
    head, _, plan = data.partition(b"\n")
    try:
        header = json.loads(head)
        del header["signature"]
        is_whole = header["sha256"] == hashlib.sha256(plan).hexdigest()
        name = f"{file.name.rpartition('-')[0]}-{_account(key)}{_SUFFIX}"
    except (ValueError, TypeError, LookupError, RecursionError):
        is_whole = False
    if not is_whole:
        log.info("%s is damaged, and not taken over", file)
        return
    header["signature"] = _signature(header, key)
    content = json.dumps(header).encode("ascii") + b"\n" + plan
    write_atomically(target / FOLDER / name, content)


def remove_plans(cache: Path, *, gpu: str | None = None, cudnn: int | None = None) -> None:
    """Remove the plans of a cache, or those for a GPU or a version of cuDNN.

    A damaged file is removed in any case, and so are the drafts of processes that died while they
    wrote.  TuningCacheError if that fails.
    """
    with refused_as(TuningCacheError, cache):
        for draft in (cache / FOLDER).glob(".*.tmp"):
            with suppress(FileNotFoundError):  # its process has finished meanwhile
                if time.time() - draft.stat().st_mtime > _DRAFT_SECONDS:
                    draft.unlink()
        for file in plan_files(cache):
            device = _device(_read(file))
            is_of_gpu = not device or gpu in (None, device.get("gpu"))
            is_of_cudnn = not device or cudnn in (None, device.get("cudnn"))
            if is_of_gpu and is_of_cudnn:
                file.unlink(missing_ok=True)


@contextmanager
def _unfit_files_left_out(file: Path) -> Iterator[None]:
    """Log that a file is not copied because it is no regular file, or too large for a plan."""
    try:
        yield
    except UnfitFileError as error:
        log.info("%s %s, and is not taken over", file, error.strerror)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of plans in a folder by their names; OSError if it cannot be listed."""
    return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIX)]


def _signature(header: dict[str, Any], key: bytes) -> str:
    """Return the signature of a header, which has the digest of the plan."""
    message = json.dumps(header, sort_keys=True).encode("ascii")
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _account(key: bytes) -> str:
    """Return a text that identifies an account without revealing its key."""
    return hashlib.sha256(b"account" + key).hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(file: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return read_file(file)
    except OSError as error:
        require_system_error(error)
        return None


def _remove(file: Path) -> None:
    try:
        os.unlink(file)
    except OSError as error:
        log.debug("%s is not removed: %s", file, error)


def _device(data: bytes | None) -> dict[str, Any]:
    """Return the device in the header of a file; empty if the file is damaged."""
    try:
        device = json.loads((data or b"").partition(b"\n")[0])["device"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return {}
    return device if isinstance(device, dict) else {}


def _device_in_words(data: bytes | None) -> str:
    device = _device(data)
    version = device.get("cudnn")
    if not isinstance(version, int):
        return "an unknown device"
    return f"{device.get('gpu')} with cuDNN {format_version(version)}"
