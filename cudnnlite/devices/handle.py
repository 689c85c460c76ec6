"""`Handle`: a cuDNN handle on one device, with its stream and its workspace."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from threading import current_thread, get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudaStream_t, cudnnHandle_t
from cudnnlite.arguments import one_of
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.devices import arrays
from cudnnlite.devices.device import Device, refuse_in_capture
from cudnnlite.devices.device_choice import get_device
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.plan_cache import PlanCache
from cudnnlite.devices.storage import read_values
from cudnnlite.devices.workspace import Workspace
from cudnnlite.dtypes import AnyDtype
from cudnnlite.errors import CaptureError, ClosedError, ThreadError
from cudnnlite.graph.compiled_plans import KernelCaches, PlanStore
from cudnnlite.other_libraries import HANDLE
from cudnnlite.problems.problem import Problem
from cudnnlite.specs.tensor import TensorSpec, tensor_spec_of
from cudnnlite.unknown import refuse_attribute

Shape: TypeAlias = int | Iterable[int] | TensorSpec


class Chooser(Protocol):
    """Who chooses the algorithm of a call that names none, instead of a heuristic."""

    @property
    def revision(self) -> int:
        """A counter of changes of choices; plans of older choices are not used any more."""

    def choose(
        self,
        problem: Problem,
        alignments: Mapping[str, int],
        workspace_limit: int | None,
        *,
        for_call: bool = False,
        replay: bool = False,
    ) -> Any:
        """Return the choice for a problem; None, only `for_call`: the heuristic chooses."""


class Handle(NativeObject[cudnnHandle_t]):
    """A `cudnnHandle_t`, with the device, the stream and the workspace of its calls.

    Parameters
    ----------
    device : str, int or device object, optional
        'cuda', 'cuda:1', 1, 'emulated', 'auto', or a `cuda.core.Device`.  If not given, the
        environment variable `CUDNNLITE_DEVICE` decides; 'cuda' if that is not set.
    stream : stream object or int, optional
        The stream for calls: a `cuda.core.Stream`, anything with `__cuda_stream__`, PyTorch's or
        CuPy's stream, or an address.  CUDA's default stream if not given.
    workspace_limit : int or str, optional
        The most workspace that a call may use: bytes, "64 MiB", or "10%" of the device's memory.
    check_same_thread : bool
        Whether it is an error to use the handle on a thread other than the one that made it.
        cuDNN's handles are not thread-safe, so make one for each thread, or set this to False and
        lock the handle yourself.

    Raises
    ------
    NoDeviceError
        There is no such CUDA device; the message says how to choose the emulated device.
    CudnnError
        `cudnnCreate` failed; if memory may be the reason, the message says how much was free.

    Notes
    -----
    C functions: `cudnnCreate`, `cudnnSetStream`, `cudnnDestroy`.

    Examples
    --------
    >>> with dnn.Handle(workspace_limit="64 MiB") as handle:
    ...     x = handle.array([[[[1.0, 2.0], [3.0, 4.0]]]], dtype="float16", layout="NHWC")
    ...     print(x.shape, x.dtype, x.layout, handle.workspace.limit)
    (1, 1, 2, 2) float16 NHWC 67108864
    """

    _create = "cudnnCreate"
    _destroy = "cudnnDestroy"
    _instead_of_copy = "make another Handle on its device"
    api: CudnnApi

    def __init__(
        self,
        device: Any = None,
        *,
        stream: Any = None,
        workspace_limit: int | str | None = None,
        check_same_thread: bool = True,
    ) -> None:
        self.device: Device = get_device(device)
        self.device.activate()
        self._thread = get_ident()
        self._thread_name = current_thread().name
        self._check_thread = one_of(check_same_thread, "check_same_thread", True, False)
        self._activates = self.device.needs_activation or not check_same_thread
        self.workspace = Workspace(self.device, workspace_limit)
        self.plans = PlanCache()
        # Chooses algorithms if the caller does not; see `autotuned`.
        self._chooser: Chooser | None = None
        # The store of compiled plans; see `autotuned`.
        self._plan_store: PlanStore | None = None
        self._kernel_caches = KernelCaches()  # of graphs with dynamic shapes
        self._graph: Any = None  # being recorded, with the objects that it needs; see `capture`
        self._recorded_by = 0  # the thread whose calls are recorded in a CUDA graph
        self._stream = self.device.stream(stream)
        super().__init__(self.device, api=self.device.api)

    def _set(self, spec: Any) -> None:
        self.api.cudnnSetStream(self.ptr, cudaStream_t(int(self._stream.handle)))

    def _use(self) -> None:
        """Check that this handle may be used here and now, and make its device current if need be.

        Raises
        ------
        ClosedError
            After `close()`, and in a `__del__` that runs while the interpreter ends.
        ThreadError
            On another thread than the one that made it.
        CaptureError
            A CUDA graph is recorded on its stream, and cannot contain the operation.
        """
        if self._native is None:
            raise ClosedError("this Handle was closed")
        if sys.is_finalizing():  # modules cannot be imported any more
            raise ClosedError("the interpreter is ending: this Handle makes no plan any more")
        if self._check_thread and get_ident() != self._thread:
            raise ThreadError(
                f"this handle was made on thread {self._thread_name!r} and is used on "
                f"{current_thread().name!r}; make one for each thread, or pass "
                "check_same_thread=False and see to the locking"
            )
        if self._activates:
            self.device.activate()
        if self.device.stand_ins:
            self._check_recorded()

    def _check_recorded(self) -> None:
        """Raise CaptureError if a graph is recorded that a call of this handle would not be in."""
        if self._recorded_by:
            recording = "through this handle on another thread; leave it to that"
            is_outside = self._recorded_by != get_ident()
        else:
            recording = (
                f"on {self._stream} through another handle; call through that one, "
                "or put this one on another stream before"
            )
            is_outside = (get_ident(), int(self._stream.handle)) in self.device.stand_ins
        if is_outside:
            raise CaptureError(
                f"a CUDA graph is recorded {recording}: what is called here would not be in it"
            )

    @property
    def _calling_thread(self) -> int:
        """The one thread that need not call `_use` before each use; 0 if all have to."""
        return 0 if self._activates else self._thread

    @property
    def version(self) -> int:
        """The version of libcudnn (`cudnnGetVersion`): 92800 is 9.28.0."""
        return int(self.api.cudnnGetVersion())

    @property
    def stream(self) -> Any:
        """The stream that calls are enqueued on; settable, with the constructor's values."""
        return self._stream

    @stream.setter
    def stream(self, stream: Any) -> None:
        self._use()
        if self._graph is not None:
            raise CaptureError(
                "the handle's stream cannot be changed while a CUDA graph is recorded on it: "
                "end the capture"
            )
        new = self.device.stream(stream)
        if int(new.handle) != int(self._stream.handle):
            self.api.cudnnSetStream(self.ptr, cudaStream_t(int(new.handle)))
        self._stream = new

    def synchronize(self) -> None:
        """Wait for all work on the stream.  Only copies, searches and `close` wait themselves."""
        self._use()
        refuse_in_capture(
            self.device, self._stream, "nothing can be waited for", "synchronize after a launch"
        )
        self.device.wait(self._stream)

    def array(
        self,
        values: ArrayLike | AnyArray,
        *,
        dtype: AnyDtype | None = None,
        layout: str | None = None,
        casting: str | None = None,
    ) -> arrays.DeviceArray:
        """Copy an array to the device.

        Parameters
        ----------
        values : array_like
            A host array of logical shape ``(N, C, *spatial)``, whatever the layout, which is packed
            on its way; or an array on this device, which is copied as it lies, gaps included
            (`DeviceArray.copy` packs), or packed by way of the host where a dtype or a layout is
            given.
        dtype : str or numpy dtype, optional
            To convert to; a vector type such as "int8x32" packs channels together.  The array's own
            if not given.
        layout : str, optional
            "NCHW", "NHWC", "NCHW_VECT_C", ...; channels first if not given.
        casting : str, optional
            "unsafe": convert as NumPy does, whatever is lost.  If not given, floats are rounded to
            those of the dtype, and what would lose anything else is refused: values that are too
            large, fractions or NaN as integers, imaginary parts, masks.

        Returns
        -------
        DeviceArray

        Raises
        ------
        ArgumentError
            A dtype, layout or shape that cuDNN has not got, or a conversion that would lose
            something.
        ArrayTypeError
            No numbers: text, dates, objects.
        DeviceMemoryError
            There is not enough device memory; the message says how much was free.
        """
        self._use()
        source = arrays.find_on_device(self.device, self._stream, values)
        if source is not None:
            source = arrays.on_stream(source, self._stream)
            if dtype is None and layout is None:
                return arrays.copy_of(source, self._stream)
            values = source.numpy()
        return arrays.from_host(
            self.device, self._stream, values, dtype=dtype, layout=layout, casting=casting
        )

    def empty(
        self, shape: Shape, dtype: AnyDtype | None = None, layout: str | None = None
    ) -> arrays.DeviceArray:
        """Allocate an array with undefined contents (all NaN on the emulated device).

        Parameters
        ----------
        shape : int, tuple of int or TensorSpec
            ``(N, C, *spatial)``, whatever the layout; the size of the only axis; or a whole spec.
        dtype, layout
            As in `TensorSpec`; float32 if not given.

        Returns
        -------
        DeviceArray

        Raises
        ------
        ArgumentError
            As in `TensorSpec`.
        DeviceMemoryError
            There is not enough device memory; the message says how much was free.
        """
        self._use()
        return arrays.empty(self.device, self._stream, tensor_spec_of(shape, dtype, layout))

    def full(
        self,
        shape: Shape,
        value: float,
        dtype: AnyDtype | None = None,
        layout: str | None = None,
        *,
        casting: str | None = None,
    ) -> arrays.DeviceArray:
        """Allocate an array like `empty`, and fill it in stream order; see `DeviceArray.fill`."""
        array = self.empty(shape, dtype, layout)
        array.fill(value, casting=casting)
        return array

    def zeros(
        self, shape: Shape, dtype: AnyDtype | None = None, layout: str | None = None
    ) -> arrays.DeviceArray:
        """Allocate an array of zeros as `full` does."""
        return self.full(shape, 0, dtype, layout)

    def pinned(
        self, shape: Shape, dtype: AnyDtype | None = None, layout: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Make a host array in page-locked memory, with undefined contents.

        `DeviceArray.copy_from` and `copy_to` are asynchronous with it; on the emulated device
        nothing is, and it is an ordinary array.  Shape, dtype and layout are those of the device
        array, so that its memory has the same order.

        Examples
        --------
        >>> with dnn.Handle() as handle:
        ...     staging = handle.pinned((2, 3, 4, 4), "float32", "NHWC")
        ...     x = handle.zeros(staging.shape, layout="NHWC")
        ...     staging[...] = 1.5
        ...     x.copy_from(staging)  # enqueued: nobody waits
        ...     x[0].fill(2.5)
        ...     x.copy_to(staging)
        ...     handle.synchronize()
        ...     print(staging.mean())
        2.0
        """
        self._use()
        spec = tensor_spec_of(shape, dtype, layout)
        return read_values(self.device.pinned(spec.nbytes), spec)

    def view(self, array: AnyArray) -> arrays.DeviceArray:
        """View an array on this device, without a copy, for this handle's stream.

        Operations view other libraries' arrays by themselves; a view made once saves that time on
        each call.  An array that belongs to another stream is waited for once, here, and no longer
        on each call: so two streams can share weights. The memory must then stay alive, and
        unwritten, until the work on both is done.

        Parameters
        ----------
        array : object
            A DeviceArray, or anything with `__dlpack__` or `__cuda_array_interface__`: CuPy,
            PyTorch, JAX, Numba.

        Raises
        ------
        ArrayTypeError
            A host array, or one on another device.
        """
        self._use()
        return arrays.on_stream(
            arrays.view(self.device, self._stream, array, "array"), self._stream
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError; for a name of another library it says what is ours."""
            return refuse_attribute(self, name, HANDLE)

    def close(self) -> None:
        """Close the handle's plans, free its workspace, destroy it; harmless when called again.

        Calls still in flight on the device are not waited for by us (`cudnnDestroy` waits).

        Raises
        ------
        CaptureError
            A CUDA graph is recorded through it.
        """
        if self._native is None:
            return
        if self._recorded_by:
            raise CaptureError(
                "the handle cannot be closed while a CUDA graph is recorded through it: "
                "end the capture"
            )
        # all of it happens, in this order from the last line up, whichever fails
        with self.device.closing(), ExitStack() as stack:
            self.device.activate()
            stack.callback(self.workspace.close)
            stack.callback(super().close)
            stack.callback(self._kernel_caches.close)
            stack.callback(self.plans.close)
