"""A kernel that faults ends the CUDA context.

From then on every call raises one error of ours, and the process ends quietly.
"""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import cudnnlite as dnn
from cudnnlite._raw.check import status_error
from cudnnlite.devices.cuda_loss import Loss, telling_loss

PROGRAM = """
import ctypes, gc
import numpy as np
import cudnnlite as dnn

handle = dnn.Handle("cuda")
x, w = handle.array(np.ones((2, 3, 8, 8), np.float32)), handle.array(np.ones((4, 3, 3, 3), np.float32))
lstm = dnn.RNNSpec("lstm", 4, 8)
weights = dnn.RNNWeights(handle, lstm)
plan = dnn.convolution_forward.plan(handle, x, w)
y = plan(x, w)
with dnn.capture(handle) as graph:
    plan(x, w, out=y)
handle.synchronize()
with dnn.TensorDescriptor((64, 64)) as nowhere:
    handle.api.cudnnSetTensor(handle.ptr, nowhere.ptr, ctypes.c_void_p(1 << 44), ctypes.byref(ctypes.c_float(1)))
other = handle.device.create_stream
calls = dict(
    synchronize=handle.synchronize, numpy=y.numpy, array=lambda: handle.array([1.0]), empty=lambda: handle.empty((4,)),
    fill=lambda: x.fill(1), copy_from=lambda: x.copy_from(np.zeros(x.shape)), copy=x.copy, plan=lambda: plan(x, w).numpy(),
    softmax=lambda: dnn.softmax_forward(handle, x).numpy(), launch=lambda: (graph.launch(), handle.synchronize()),
    rnn=lambda: dnn.rnn_forward(handle, lstm, weights, handle.empty((2, 2, 4))), stream=other,
    find=lambda: dnn.convolution_forward.find(handle, x, w), handle=lambda: dnn.Handle("cuda").array([1.0]),
    memory=handle.device.memory_info, dlpack=lambda: handle.view(y).__dlpack__(stream=5),
)
for name, call in calls.items():
    try:
        call()
        print(name, "nothing")
    except Exception as error:
        print(name, type(error).__name__, error)
graph.close()
plan.close()
x.close()
handle.close()
print("closed")
del x, y, w, weights, plan, graph, handle, calls
gc.collect()
print("collected")
"""


@pytest.mark.gpu
@pytest.mark.processes
def test_an_illegal_address():
    process = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    *messages, closed, collected = process.stdout.splitlines()
    print(process.stdout, process.stderr)
    assert (closed, collected, process.returncode) == ("closed", "collected", 0)
    assert len(messages) == 16
    for line in messages:
        assert "DeviceLostError cuda:0 is lost to this process" in line
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in line
        assert "Restart the process" in line
    assert "Error" not in process.stderr


class Driver:
    """As much of cuda.bindings.driver as is asked."""

    code = SimpleNamespace(name="CUDA_SUCCESS")

    def cuMemGetInfo(self):
        return self.code, 1, 2

    def cuGetErrorString(self, code):
        return 0, b"an illegal memory access was encountered"


class Pretended:
    """A device with methods that fail."""

    def __init__(self):
        self.driver = Driver()
        self.loss = Loss("cuda:0", self.driver)

    @telling_loss
    def work(self, error):
        raise error


def test_other_errors_stay_what_they_are():
    device = Pretended()
    for error in (RuntimeError("CUDA_ERROR_INVALID_VALUE"), dnn.errors.CaptureError("ours")):
        with pytest.raises(type(error), match=str(error)):
            device.work(error)
    with pytest.raises(ZeroDivisionError), device.loss.closing():
        raise ZeroDivisionError


def test_the_first_error_is_told_each_time():
    device = Pretended()
    device.driver.code = SimpleNamespace(name="CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(
        dnn.errors.DeviceLostError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS .an illegal memory access"
    ) as caught:
        device.work(RuntimeError("something"))
    assert str(caught.value.__cause__) == "something"
    device.driver.code = SimpleNamespace(name="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    with pytest.raises(dnn.errors.DeviceLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.work(RuntimeError("later"))
    with device.loss.closing():
        raise ZeroDivisionError


def test_a_status_that_comes_of_it():
    device = Pretended()
    device.driver.code = SimpleNamespace(name="CUDA_ERROR_LAUNCH_FAILED")
    with pytest.raises(dnn.errors.DeviceLostError) as caught:
        status_error("cudnnAddTensor", dnn.enums.Status.EXECUTION_FAILED, "", device.loss.tell)
    assert isinstance(caught.value.__cause__, dnn.errors.ExecutionError)
