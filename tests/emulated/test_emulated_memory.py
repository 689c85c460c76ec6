"""The emulated device's memory: every use is checked, and new or freed memory holds garbage."""

import gc
import itertools
import random
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.emulated.memory import (
    ALIGNMENT,
    POISON_FREED,
    POISON_NEW,
    EmulatedMemory,
    IllegalAddressError,
)
from cudnnlite.errors import DeviceMemoryError

MIB = 1 << 20


@pytest.fixture
def memory():
    return EmulatedMemory(100 * MIB)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, 101), (-1, 1), (-1, 2), (1, 100), (100, 1), (99, 2), (0, 10**9), (-(10**6), 10**7)],
)
def test_a_range_outside_is_refused(memory, offset, nbytes):
    buffer = memory.allocate(100)
    assert not memory.contains(buffer.handle + offset, nbytes)
    with pytest.raises(IllegalAddressError, match=f"{nbytes} bytes at 0x"):
        memory.view(buffer.handle + offset, nbytes)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 100), (0, 1), (99, 1), (50, 50), (1, 98)])
def test_a_range_inside_is_the_memory_itself(memory, offset, nbytes):
    buffer = memory.allocate(100)
    assert memory.contains(buffer.handle + offset, nbytes)
    memory.view(buffer.handle + offset, nbytes)[:] = 7
    whole = memory.view(buffer.handle, 100)
    assert (whole == 7).sum() == nbytes
    assert (whole[offset : offset + nbytes] == 7).all()


@pytest.mark.parametrize("address", [0, 1, 2**48, 2**63])
def test_addresses_of_nobody(memory, address):
    keep = memory.allocate(10)
    assert not memory.contains(address, 1)
    with pytest.raises(IllegalAddressError):
        memory.view(address, 1)
    keep.close()


def test_no_bytes_may_be_anywhere(memory):
    assert memory.view(0, 0).size == 0


def test_a_range_across_two_allocations_is_refused(memory):
    buffers = sorted(
        (memory.allocate(ALIGNMENT) for _ in range(20)), key=lambda buffer: buffer.handle
    )
    gaps = {later.handle - sooner.handle for sooner, later in itertools.pairwise(buffers)}
    for sooner, later in itertools.pairwise(buffers):
        with pytest.raises(IllegalAddressError):
            memory.view(sooner.handle, later.handle - sooner.handle + 1)
    assert min(gaps) > ALIGNMENT  # allocations never touch, so an overrun is always seen


def test_host_memory_is_not_the_devices(memory):
    host = np.zeros(100, np.uint8)
    assert not memory.contains(host.ctypes.data, 1)


def test_one_devices_memory_is_not_anothers(memory):
    buffer = EmulatedMemory(1000).allocate(10)
    assert not memory.contains(buffer.handle, 1)


# ---------------------------------------------------------------- contents


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_new_memory_is_nan(memory, dtype):
    buffer = memory.allocate(64)
    assert np.isnan(memory.view(buffer.handle, 64).view(dtype)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_empty_arrays_are_nan(own_handle, dtype):
    assert np.isnan(own_handle.empty((2, 3, 4, 5), dtype).numpy().astype("float32")).all()


def test_new_memory_is_poisoned_wherever_it_comes_from(memory):
    for _ in range(50):
        buffer = memory.allocate(4096)
        assert (memory.view(buffer.handle, 4096) == POISON_NEW).all()
        memory.view(buffer.handle, 4096)[:] = 1
        buffer.close()


def test_freed_memory_is_garbage(memory):
    buffer = memory.allocate(64)
    before = memory.view(buffer.handle, 64)
    before[:] = 1
    buffer.close()
    assert (before == POISON_FREED).all()
    assert (
        abs(before.view("float32")).max() < 1e-10
    )  # garbage that no comparison would pass, nor take for NaN


def test_freed_memory_cannot_be_used(memory):
    buffer = memory.allocate(64)
    address = buffer.handle
    buffer.close()
    assert not memory.contains(address, 1)
    with pytest.raises(IllegalAddressError):
        memory.view(address, 1)


def test_freed_addresses_are_not_handed_out_again_soon(memory):
    addresses = set()
    for _ in range(300):
        buffer = memory.allocate(4096)
        assert buffer.handle not in addresses
        addresses.add(buffer.handle)
        buffer.close()


def test_the_quarantine_does_not_grow_without_end(memory):
    for _ in range(8):
        memory.allocate(16 * MIB).close()
    assert memory._quarantined <= 64 * MIB
    assert sum(block.nbytes for block in memory._quarantine) == memory._quarantined
    assert memory.used == 0


# ---------------------------------------------------------------- large allocations

LARGE = 512 * MIB


@pytest.fixture
def large(large_memory):
    return large_memory.allocate(LARGE)


@pytest.fixture
def large_memory():
    return EmulatedMemory(2 * LARGE)


def resident_bytes():
    """Return how much of the host's memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_nobody_looks_at_takes_no_memory(large_memory):
    before = resident_bytes()
    buffer = large_memory.allocate(LARGE)
    for offset in (0, LARGE // 2 + 1, LARGE - 3):
        assert (large_memory.view(buffer.handle + offset, 3) == POISON_NEW).all()
    assert resident_bytes() - before < 64 * MIB
    buffer.close()
    assert large_memory.used == 0


def test_a_large_empty_array_takes_no_memory():
    before = resident_bytes()
    with dnn.Handle(device="emulated") as handle:
        x = handle.empty((2, 256, 512, 512), "float32")
        assert np.isnan(x[1:, 255:, 511:, 511:].numpy()).all()
        assert resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, 1), (2 * MIB - 1, 2), (3 * MIB, 4 * MIB), (LARGE - 1, 1), (LARGE - MIB - 1, MIB)],
)
def test_a_part_is_poisoned_once(large_memory, large, offset, nbytes):
    part = large_memory.view(large.handle + offset, nbytes)
    assert (part == POISON_NEW).all()
    part[:] = 1
    start = max(0, offset - MIB)
    around = large_memory.view(large.handle + start, min(offset + nbytes + MIB, LARGE) - start)
    assert (around == 1).sum() == nbytes
    assert (around == POISON_NEW).sum() == around.size - nbytes


def test_freed_parts_that_somebody_looked_at_are_garbage(large_memory, large):
    part = large_memory.view(large.handle + 100 * MIB, 10)
    large.close()
    assert (part == POISON_FREED).all()


def test_an_exported_large_allocation_is_poisoned():
    buffer = EmulatedMemory(LARGE).allocate(17 * MIB + 5)
    assert (buffer.bytes() == POISON_NEW).all()


def test_a_small_allocation_where_a_large_one_was_is_not_poisoned_again():
    memory = EmulatedMemory(MIB, large=1000)
    for nbytes in (2000, 500, 2000, 500):
        buffer = memory.allocate(nbytes)
        memory.view(buffer.handle, nbytes)[:] = 1
        assert (memory.view(buffer.handle, nbytes) == 1).all()
        buffer.close()


# ---------------------------------------------------------------- accounting


@pytest.mark.parametrize("nbytes", [1, 2, 255, 256, 257, 1000, MIB])
def test_alignment(memory, nbytes):
    buffers = [memory.allocate(nbytes) for _ in range(5)]
    assert all(buffer.handle % ALIGNMENT == 0 for buffer in buffers)
    assert ALIGNMENT == 256


def test_capacity_is_the_whole_and_not_a_byte_more():
    memory = EmulatedMemory(1000)
    first = memory.allocate(600)
    with pytest.raises(
        DeviceMemoryError,
        match="401 B of emulated device memory are not there: 400 B of 1000 B are free",
    ):
        memory.allocate(401)
    second = memory.allocate(400)
    assert memory.used == memory.peak == 1000
    with pytest.raises(DeviceMemoryError, match="0 B of 1000 B are free"):
        memory.allocate(1)
    first.close()
    assert memory.allocate(600).size == 600
    second.close()


def test_counts(memory):
    one, other = memory.allocate(10), memory.allocate(20)
    assert (len(memory), memory.used, memory.peak) == (2, 30, 30)
    one.close()
    assert (len(memory), memory.used, memory.peak) == (1, 20, 30)
    assert one.is_closed
    assert not other.is_closed
    one.close()
    assert (len(memory), memory.used) == (1, 20)
    del other
    gc.collect()
    assert (len(memory), memory.used, memory.peak) == (0, 0, 30)


def test_no_bytes_take_no_room(memory):
    buffer = memory.allocate(0)
    assert (buffer.handle, buffer.size, len(memory)) == (0, 0, 0)
    buffer.close()
    assert buffer.bytes().size == 0


def test_an_exported_array_keeps_the_allocation(memory):
    buffer = memory.allocate(100)
    exported = buffer.bytes()
    assert exported.ctypes.data == buffer.handle
    part = exported[10:20].view(np.int16)
    del buffer, exported
    gc.collect()
    assert memory.used == 100
    part[:] = 5
    del part
    gc.collect()
    assert memory.used == 0


def test_many_threads(memory):
    """Allocations of all threads are distinct, keep what was written, and are all given back."""
    errors = []
    start = threading.Barrier(8)

    def work(seed):
        rng = random.Random(seed)
        held = []
        try:
            start.wait()
            for step in range(300):
                buffer = memory.allocate(rng.randrange(1, 5000))
                memory.view(buffer.handle, buffer.size)[:] = seed
                held.append(buffer)
                if step % 3 == 2:
                    old = held.pop(rng.randrange(len(held)))
                    if not (memory.view(old.handle, old.size) == seed).all():
                        errors.append("overwritten")
                    old.close()
            for buffer in held:
                if not (memory.view(buffer.handle, buffer.size) == seed).all():
                    errors.append("overwritten")
                buffer.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (memory.used, len(memory)) == (0, 0)
    assert memory._addresses == []


# ---------------------------------------------------------------- the device around it


def test_device_sizes():
    assert EmulatedDevice().memory_info() == (16 << 30, 16 << 30)
    device = EmulatedDevice(2, capacity="1 KiB")
    buffer = device.allocate(24, None)
    assert device.memory_info() == (1000, 1024)
    assert device.memory_used() == 24
    buffer.close()


@pytest.mark.parametrize("capacity", ["lots", -1, None])
def test_device_refuses_bad_capacities(capacity):
    with pytest.raises(dnn.ArgumentError, match="capacity="):
        EmulatedDevice(0, capacity=capacity)


def test_copies_are_checked(own_device):
    buffer = own_device.allocate(16, None)
    values, stream = np.arange(4, dtype=np.float32), own_device.default_stream
    own_device.copy_in(buffer.handle, values, stream)
    values[:] = 0  # the copy was made
    back = np.empty(4, np.float32)
    own_device.copy_out(back, buffer.handle, stream)
    assert back.tolist() == [0, 1, 2, 3]
    for failing in (
        lambda: own_device.copy_in(buffer.handle + 1, values, stream),
        lambda: own_device.copy_out(back, buffer.handle + 4, stream),
        lambda: own_device.copy_within(buffer.handle, buffer.handle + 8, 9, stream),
        lambda: own_device.copy_in(buffer.handle, np.zeros(5, np.float32), stream),
    ):
        with pytest.raises(IllegalAddressError):
            failing()
    own_device.copy_within(buffer.handle + 8, buffer.handle, 8, stream)
    own_device.copy_out(back, buffer.handle, stream)
    assert back.tolist() == [0, 1, 0, 1]


def test_streams(own_device):
    default = own_device.stream(None)
    new_stream = own_device.create_stream()
    assert default is own_device.default_stream
    assert new_stream.handle != default.handle
    assert own_device.stream(new_stream) is new_stream
    assert own_device.stream(new_stream.handle) is new_stream
    new_stream.sync()
    for stream in (
        new_stream.handle + 1,
        True,
        "stream",
        1.5,
        EmulatedDevice(8).create_stream(),
        EmulatedDevice(8).default_stream,
    ):
        with pytest.raises(dnn.ArgumentError, match="is not a stream of <emulated:5>"):
            own_device.stream(stream)
    assert repr(new_stream) == f"<EmulatedStream {new_stream.handle:#x} of <emulated:5>>"


@pytest.mark.parametrize("pointer", ["x", "w", "y", "workspace"])
def test_a_bad_pointer_becomes_an_execution_failure(own_handle, pointer):
    """What a GPU may answer with a corrupted neighbour."""
    import ctypes

    x = own_handle.array(np.ones((1, 2, 5, 5), np.float32))
    w = own_handle.array(np.ones((2, 2, 3, 3), np.float32))
    with dnn.convolution_forward.plan(own_handle, x, w, algorithm="gemm") as plan:
        assert plan.workspace > 0
        y = plan(x, w)
        before = y.numpy()
        pointers = {
            "x": x.ptr,
            "w": w.ptr,
            "y": y.ptr,
            "workspace": own_handle.workspace.reserve(plan.workspace, own_handle.stream),
        }
        one, zero = ctypes.c_float(2), ctypes.c_float(0)

        def call():
            own_handle.api.cudnnConvolutionForward(
                own_handle.ptr,
                ctypes.addressof(one),
                plan.descriptors["x"].ptr,
                pointers["x"],
                plan.descriptors["w"].ptr,
                pointers["w"],
                plan.descriptors["conv"].ptr,
                plan.choice.algorithm,
                pointers["workspace"],
                plan.workspace,
                ctypes.addressof(zero),
                plan.descriptors["y"].ptr,
                pointers["y"],
            )

        pointers[pointer] += ALIGNMENT * 100
        with pytest.raises(dnn.CudnnError, match="do not lie inside one live allocation") as caught:
            call()
        assert caught.value.status == dnn.enums.Status.EXECUTION_FAILED
        assert (y.numpy() == before).all()
        pointers[pointer] -= ALIGNMENT * 100
        call()
        assert (y.numpy() == 2 * before).all()
