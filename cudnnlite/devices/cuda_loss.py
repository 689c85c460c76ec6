"""`Loss`: whether CUDA has given a device up, and the one error that is told from then on."""

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
    """What is known of a device's loss: asked of the driver once something went wrong, and kept."""

    def __init__(self, device: str, driver: Any) -> None:
        self._device, self._driver, self._first = device, driver, ""

    def __bool__(self) -> bool:
        if not self._first:
            code, *_ = self._driver.cuMemGetInfo()
            if code.name in _FINAL:
                failed, text = self._driver.cuGetErrorString(code)
                self._first = code.name if failed else f"{code.name} ({text.decode()})"
        return bool(self._first)

    def tell(self, cause: Exception | None = None) -> None:
        """Raise DeviceLostError if the device is lost."""
        if self:
            raise DeviceLostError(
                f"{self._device} is lost to this process: a kernel ended with {self._first}, and CUDA does nothing more here. "
                "Restart the process; compute-sanitizer names the kernel"
            ) from cause

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Keep quiet about what cannot be given back any more in the block."""
        try:
            yield
        except Exception:
            if not self:
                raise


def telling_loss(method: CallT) -> CallT:
    """Let a method of a device with a `loss` raise DeviceLostError, where CUDA's own errors mean that."""

    @wraps(method)
    def told(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except CudnnliteError:
            raise
        except Exception as error:
            self.loss.tell(error)
            raise

    return cast("CallT", told)
