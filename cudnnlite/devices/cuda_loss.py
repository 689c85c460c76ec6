"""`Loss`: whether CUDA has given up a device, and the error that every call raises from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from cudnnlite.errors import CudnnliteError, DeviceLostError

CallT = TypeVar("CallT", bound=Callable[..., Any])

# After one of these a context answers every call with it, until the process ends.
_FINAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT",
        "CONTEXT_IS_DESTROYED",
        "ECC_UNCORRECTABLE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "NVLINK_UNCORRECTABLE",
    )
)


class Loss:
    """Whether a device is lost; the driver's answer, asked after an error, is remembered."""

    def __init__(self, device: str, driver: Any) -> None:
        self._device = device
        self._driver = driver
        self._reason = ""

    def __bool__(self) -> bool:
        if not self._reason:
            code, *_ = self._driver.cuMemGetInfo()
            if code.name in _FINAL:
                failed, text = self._driver.cuGetErrorString(code)
                self._reason = code.name if failed else f"{code.name} ({text.decode()})"
        return bool(self._reason)

    def tell(self, cause: Exception | None = None) -> None:
        """Raise DeviceLostError if the device is lost."""
        if self:
            raise DeviceLostError(
                f"{self._device} is lost to this process: a kernel ended with {self._reason}, "
                "and CUDA does nothing more here. Restart the process; "
                "compute-sanitizer names the kernel"
            ) from cause

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Ignore errors in the block if the device is lost, as nothing can be freed then."""
        try:
            yield
        except Exception:
            if not self:
                raise


def telling_loss(method: CallT) -> CallT:
    """Make a device's method raise DeviceLostError if CUDA's own error means that."""

    @wraps(method)
    def call_method(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except CudnnliteError:
            raise
        except Exception as error:
            self.loss.tell(error)
            raise

    return cast("CallT", call_method)
