"""Workspace: growth and reuse, limits, leases, streams, and what happens when memory runs out."""

import gc

import pytest

import cudnnlite as dnn
from cudnnlite import ArgumentError, DeviceMemoryError, WorkspaceLimitError
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.errors import ClosedError
from cudnnlite.types import Workspace

MIB = 1 << 20


@pytest.fixture
def workspace(own_device):
    new_workspace = Workspace(own_device)
    yield new_workspace
    new_workspace.close()


def test_nothing_is_held_at_first(workspace, own_device):
    assert (workspace.size, workspace.peak, workspace.limit) == (0, 0, None)
    assert workspace.reserve(0, own_device.default_stream) == 0
    assert own_device.memory_used() == 0


def test_a_buffer_is_reused_and_only_grows(workspace, own_device):
    stream = own_device.default_stream
    first = workspace.reserve(1000, stream)
    assert own_device.memory.contains(first, 1000)
    assert workspace.reserve(1000, stream) == first
    assert workspace.reserve(10, stream) == first
    assert (workspace.size, own_device.memory_used()) == (1000, 1000)
    second = workspace.reserve(1001, stream)
    assert own_device.memory.contains(second, 1001)
    assert not own_device.memory.contains(first, 1)
    assert (workspace.size, own_device.memory_used()) == (1001, 1001)
    assert workspace.reserve(1, stream) == second


def test_peak_counts_what_was_held_at_once(workspace, own_device):
    stream = own_device.default_stream
    workspace.reserve(100, stream)
    assert workspace.peak == 100
    workspace.reserve(300, stream)
    assert workspace.peak == 400  # the old buffer is freed behind the new one
    workspace.release()
    workspace.reserve(50, stream)
    assert (workspace.size, workspace.peak) == (50, 400)
    assert own_device.memory.peak == 400


def test_each_stream_has_a_buffer_of_its_own(workspace, own_device):
    one, other = own_device.create_stream(), own_device.create_stream()
    addresses = {workspace.reserve(500, one), workspace.reserve(700, other)}
    assert len(addresses) == 2
    assert workspace.size == workspace.peak == 1200
    assert workspace.reserve(500, one) in addresses
    assert workspace.reserve(700, other) in addresses


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [(4096, 4096), ("4 KiB", 4096), ("1 MiB", MIB), ("10%", 64 * MIB // 10), ("50 %", 32 * MIB)],
)
def test_limits(own_device, limit, nbytes):
    workspace = Workspace(own_device, limit)
    assert workspace.limit == nbytes
    workspace.reserve(nbytes, own_device.default_stream)
    with pytest.raises(WorkspaceLimitError, match=r"a workspace of .* is needed; the limit is"):
        workspace.reserve(nbytes + 1, own_device.default_stream)
    assert workspace.size == nbytes  # what was held is kept
    workspace.close()


def test_a_limit_of_nothing(own_device):
    workspace = Workspace(own_device, 0)
    assert workspace.reserve(0, own_device.default_stream) == 0
    with pytest.raises(WorkspaceLimitError):
        workspace.reserve(1, own_device.default_stream)


def test_the_limit_is_settable(workspace, own_device):
    workspace.limit = "1 KiB"
    assert workspace.limit == 1024
    with pytest.raises(WorkspaceLimitError):
        workspace.reserve(1025, own_device.default_stream)
    workspace.limit = None
    assert workspace.reserve(1025, own_device.default_stream)


@pytest.mark.parametrize("bad", ["much", "101%", -1, 1.5, "", True])
def test_a_bad_limit_is_refused_and_the_old_one_kept(workspace, own_device, bad):
    workspace.limit = 77
    with pytest.raises(ArgumentError, match="limit="):
        workspace.limit = bad
    assert workspace.limit == 77
    with pytest.raises(ArgumentError, match="limit="):
        Workspace(own_device, bad)


def test_a_percentage_is_of_the_whole_memory_however_much_is_free(workspace, own_device):
    held = own_device.allocate(60 * MIB, None)
    assert workspace.limit_for("50%") == 32 * MIB
    held.close()


def test_a_lease_is_exclusive(workspace, own_device):
    stream = own_device.default_stream
    with workspace.lease(1000, stream) as address:
        assert own_device.memory.contains(address, 1000)
        with pytest.raises(WorkspaceLimitError, match="is leased"), workspace.lease(10, stream):
            pytest.fail("leased twice")
        with pytest.raises(WorkspaceLimitError, match="is leased"):
            workspace.reserve(2000, stream)
        with pytest.raises(WorkspaceLimitError, match="cannot be released while it is leased"):
            workspace.release()
        assert own_device.memory.contains(address, 1000)
    with workspace.lease(10, stream) as again:
        assert again == address


@pytest.mark.parametrize("nbytes", [0, 1])
def test_a_leased_buffer_is_not_handed_out_a_second_time(workspace, own_device, nbytes):
    """A call without a lease would overwrite what the lease's holder keeps there."""
    stream = own_device.default_stream
    with workspace.lease(1000, stream) as leased:
        try:
            other = workspace.reserve(nbytes, stream)
        except WorkspaceLimitError:
            other = None
        assert other != leased


def test_other_streams_are_free_during_a_lease(workspace, own_device):
    with (
        workspace.lease(100, own_device.default_stream) as one,
        workspace.lease(100, own_device.create_stream()) as other,
    ):
        assert one != other


def test_an_error_inside_ends_the_lease(workspace, own_device):
    with pytest.raises(KeyError), workspace.lease(10, own_device.default_stream):
        raise KeyError
    workspace.release()
    assert own_device.memory_used() == 0


def test_a_refused_lease_leaves_nothing_leased(own_device):
    workspace = Workspace(own_device, 100)
    with pytest.raises(WorkspaceLimitError), workspace.lease(101, own_device.default_stream):
        pytest.fail("leased beyond the limit")
    workspace.release()
    with workspace.lease(100, own_device.default_stream):
        assert workspace.size == 100
    workspace.close()


def test_release_gives_back_and_the_next_call_allocates_again(workspace, own_device):
    workspace.reserve(1000, own_device.default_stream)
    workspace.release()
    assert (workspace.size, own_device.memory_used()) == (0, 0)
    assert workspace.reserve(500, own_device.default_stream)
    assert workspace.size == 500


def test_close(workspace, own_device):
    stream = own_device.default_stream
    workspace.reserve(1000, stream)
    workspace.close()
    assert own_device.memory_used() == 0
    with pytest.raises(ClosedError, match="handle was closed"):
        workspace.reserve(1, stream)
    with pytest.raises(ClosedError), workspace.lease(1, stream):
        pytest.fail("leased after close")
    workspace.close()


def test_a_dropped_workspace_frees_its_memory(own_device):
    workspace = Workspace(own_device)
    workspace.reserve(1000, own_device.default_stream)
    del workspace
    gc.collect()
    assert own_device.memory_used() == 0


def test_a_full_device_says_how_much_was_free_and_loses_nothing():
    device = EmulatedDevice(3, capacity="10 MiB")
    workspace = Workspace(device)
    stream = device.default_stream
    address = workspace.reserve(4 * MIB, stream)
    with pytest.raises(
        DeviceMemoryError,
        match="7 MiB of emulated device memory are not there: 6 MiB of 10 MiB are free",
    ):
        workspace.reserve(7 * MIB, stream)
    assert workspace.reserve(4 * MIB, stream) == address
    assert (workspace.size, workspace.peak, device.memory_used()) == (4 * MIB, 4 * MIB, 4 * MIB)
    with pytest.raises(DeviceMemoryError), workspace.lease(7 * MIB, stream):
        pytest.fail("leased what is not there")
    workspace.release()
    assert device.memory_used() == 0


def test_repr(workspace, own_device):
    assert repr(workspace) == "<Workspace 0 B, peak 0 B, no limit>"
    workspace.limit = "1 MiB"
    workspace.reserve(2048, own_device.default_stream)
    assert repr(workspace) == "<Workspace 2 KiB, peak 2 KiB, limit 1 MiB>"


def test_a_handle_has_one(own_device):
    with dnn.Handle(own_device, workspace_limit="10%") as handle:
        assert isinstance(handle.workspace, Workspace)
        assert handle.workspace.limit == 64 * MIB // 10
        handle.workspace.reserve(100, handle.stream)
        assert own_device.memory_used() == 100
    assert own_device.memory_used() == 0


def test_memory_that_ran_out_inside_a_call_says_so():
    import numpy as np

    device = EmulatedDevice(3, capacity="1 MiB")
    with dnn.Handle(device) as handle:
        x = handle.array(
            np.ones((1, 8, 64, 64), np.float32)
        )  # 128 KiB; im2col takes nine times that
        w = handle.array(np.ones((2, 8, 3, 3), np.float32))
        with pytest.raises(DeviceMemoryError, match=r"are not there: .* of 1 MiB are free"):
            dnn.convolution_forward(handle, x, w, dnn.ConvolutionSpec(1), algorithm="gemm")
        assert (
            dnn.convolution_forward(
                handle, x, w, dnn.ConvolutionSpec(1), algorithm="implicit_gemm"
            ).shape[1]
            == 2
        )
