"""Fixtures of the unit tests; none of them needs a GPU."""

import pytest

from cudnnlite.devices.handle import Handle
from cudnnlite.emulated.device import EmulatedDevice

from .harness import World


@pytest.fixture
def own_device():
    """An emulated device that nobody else allocates on."""
    return EmulatedDevice(5, capacity="64 MiB")


@pytest.fixture
def own_handle(own_device):
    with Handle(own_device) as made:
        yield made


@pytest.fixture
def world(monkeypatch):
    """Counted native objects on an emulated device of their own."""
    return World(monkeypatch)
