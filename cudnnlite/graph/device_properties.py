"""`DeviceProperties`: what cuDNN has to know of a GPU to plan for it, without the GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cudnnlite.arguments import integer, path_of, refused_as, shown
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file, write_named_file
from cudnnlite.graph.backend_descriptor import BackendDescriptor

_MOST = 2**31 - 1  # cuDNN refuses an integer that C's int does not have
_MOST_BYTES = 2**63 - 1
_LARGEST_GRID = (_MOST, 65535, 65535)
_LARGEST_BLOCK = (1024, 1024, 64)
# The keys that cuDNN's JSON has to have, apart from deviceName, maxGridSize and maxBlockSize.
_INTEGERS = (
    "deviceVer",
    "cudaDeviceId",
    "totalGlobalMem",
    "driverVer",
    "regsPerBlock",
    "multiProcessorCount",
    "warpSize",
    "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin",
    "reservedSharedMemoryPerBlock",
    "maxRegistersPerSM",
    "maxCtasPerSM",
    "maxThreadsPerBlock",
    "maxThreadsPerSM",
    "pciDeviceId",
    "isTccDriver",
    "supportCoopLaunch",
    "smClockRateKHz",
    "memClockRateKHz",
    "memoryBusWidth",
    "l2CacheSize",
)
_TRIPLES = ("maxGridSize", "maxBlockSize")
# A newer driver than any that a cuDNN 9 needs for an architecture.
_DRIVER = 13000


class _Architecture(NamedTuple):
    """The properties that all cards of a compute capability share."""

    shared_memory: int  # the most that a block may ask for, bytes
    reserved_shared_memory: int
    blocks: int  # on a multiprocessor at once
    threads: int


_ARCHITECTURES = {
    700: _Architecture(98304, 0, 32, 2048),
    750: _Architecture(65536, 0, 16, 1024),
    800: _Architecture(166912, 1024, 32, 2048),
    860: _Architecture(101376, 1024, 16, 1536),
    890: _Architecture(101376, 1024, 24, 1536),
    900: _Architecture(232448, 1024, 32, 2048),
    1000: _Architecture(232448, 1024, 32, 2048),
    1200: _Architecture(101376, 1024, 24, 1536),
}


class _Card(NamedTuple):
    """The properties in which cards of one compute capability differ."""

    name: str
    compute_capability: int  # 900 is 9.0
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    l2_bytes: int
    memory_gib: int


_CARDS = {
    "v100": _Card("Tesla V100-SXM2-32GB", 700, 80, 1530000, 877000, 4096, 6291456, 32),
    "t4": _Card("Tesla T4", 750, 40, 1590000, 5001000, 256, 4194304, 15),
    "a100": _Card("NVIDIA A100-SXM4-80GB", 800, 108, 1410000, 1593000, 5120, 41943040, 79),
    "a10": _Card("NVIDIA A10", 860, 72, 1695000, 6251000, 384, 6291456, 22),
    "rtx3090": _Card("NVIDIA GeForce RTX 3090", 860, 82, 1695000, 9751000, 384, 6291456, 24),
    "l4": _Card("NVIDIA L4", 890, 58, 2040000, 6251000, 192, 50331648, 22),
    "l40s": _Card("NVIDIA L40S", 890, 142, 2520000, 9001000, 384, 100663296, 44),
    "rtx4090": _Card("NVIDIA GeForce RTX 4090", 890, 128, 2520000, 10501000, 384, 75497472, 24),
    "h100": _Card("NVIDIA H100 80GB HBM3", 900, 132, 1980000, 2619000, 5120, 52428800, 79),
    "h200": _Card("NVIDIA H200", 900, 132, 1980000, 3201000, 6144, 62914560, 140),
    "b200": _Card("NVIDIA B200", 1000, 148, 1965000, 3996000, 8192, 132644864, 178),
    "rtx5090": _Card("NVIDIA GeForce RTX 5090", 1200, 170, 2407000, 14001000, 512, 100663296, 31),
}


class DeviceProperties:
    """The properties of a GPU by which cuDNN chooses and compiles engines.

    The properties take the place of the GPU: saved on one machine, they answer on another which
    engines cuDNN has for that GPU (`candidates`).  Properties can be compared,
    hashed, printed and saved.

    Parameters
    ----------
    values : mapping
        The properties by the names of cuDNN's JSON, "deviceVer", "multiProcessorCount", ...

    Attributes
    ----------
    values : mapping
        The properties, read-only.
    name : str
        The card, "NVIDIA H200".
    compute_capability : str
        The architecture, "9.0".
    multiprocessors : int
        The number of multiprocessors.
    known_names : tuple of str
        The names that `named` takes.

    Raises
    ------
    ArgumentError
        A property is missing or has another type; the message names it.

    Examples
    --------
    >>> h200 = dnn.types.DeviceProperties.named("h200")
    >>> print(h200, dnn.types.DeviceProperties.from_json(h200.to_json()) == h200)
    NVIDIA H200, compute capability 9.0, 132 multiprocessors True
    >>> print(h200.replace(multiProcessorCount=66).multiprocessors)
    66
    """

    known_names = tuple(_CARDS)

    def __init__(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise ArgumentError(f"values={shown(values)} is not a mapping")
        # cuDNN 9.19 does not write the width of the bus, and 9.28 does not plan without one.  With
        # any width it named the same engines, so 0 stands for an unknown one.
        values = {"memoryBusWidth": 0, **values}
        required = {"deviceName", *_INTEGERS, *_TRIPLES}
        missing = sorted(name for name in required if name not in values)
        if missing:
            raise ArgumentError(f"the properties of a GPU lack {', '.join(missing)}")
        checked = {name: _value(name, value) for name, value in values.items()}
        with refused_as(ArgumentError, "values cannot be JSON", TypeError, ValueError):
            json.dumps(checked)
        self.values: Mapping[str, Any] = MappingProxyType(checked)

    @classmethod
    def of(cls, handle: Any) -> DeviceProperties:
        """Return the properties of a handle's device.

        Parameters
        ----------
        handle : Handle
            A handle of the emulated device stands for an H200.

        Raises
        ------
        NotSupportedError
            libcudnn is older than 9.8.

        Notes
        -----
        C functions: those of a `BackendDescriptor` "DEVICEPROP".
        """
        with BackendDescriptor(handle, "DEVICEPROP", handle=handle) as descriptor:
            return cls.from_json(descriptor.finalize().get("json_representation"))

    @classmethod
    def named(cls, name: str) -> DeviceProperties:
        """Return the properties of a common card, "a100", "h200", "b200", "rtx4090", ...

        Raises
        ------
        ArgumentError
            The table has no such card; the message lists those that it has.
        """
        key = name.lower().replace(" ", "").replace("-", "") if isinstance(name, str) else name
        card = _CARDS.get(key) if isinstance(key, str) else None
        if card is None:
            raise ArgumentError(
                f"name={shown(name)} is no card of the table; allowed: {', '.join(_CARDS)}; "
                "DeviceProperties.of(handle) describes any other"
            )
        return cls(_properties_of(card))

    @classmethod
    def from_json(cls, text: str) -> DeviceProperties:
        """Return the properties that `to_json` wrote; ArgumentError if it wrote other text."""
        with refused_as(
            ArgumentError, f"text={shown(text)} is no JSON", TypeError, ValueError, RecursionError
        ):
            values = json.loads(text)
        return cls(values)

    def to_json(self) -> str:
        """Return the properties as the JSON that cuDNN reads."""
        return json.dumps(dict(self.values))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DeviceProperties:
        """Return the properties that `save` wrote.

        Raises
        ------
        ArgumentError
            The file cannot be read, or is no such file; the message names it.
        """
        file = path_of(path)
        location = f"path={str(file)!r}"
        with refused_as(ArgumentError, f"{location} cannot be read"):
            data = read_named_file(file)
        # ValueError stands for text that is not UTF-8, and ArgumentError is one.
        with refused_as(ArgumentError, location, ValueError):
            return cls.from_json(data.decode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the properties as JSON; ArgumentError if the file cannot be written."""
        file = path_of(path)
        with refused_as(ArgumentError, f"path={str(file)!r} cannot be written"):
            write_named_file(file, (self.to_json() + "\n").encode())

    def replace(self, **changes: Any) -> DeviceProperties:
        """Return properties with some values replaced, by the names of cuDNN's JSON."""
        return type(self)({**self.values, **changes})

    @property
    def name(self) -> str:
        """The card, "NVIDIA H200"."""
        return str(self.values["deviceName"])

    @property
    def compute_capability(self) -> str:
        """The architecture, "9.0"."""
        version = int(self.values["deviceVer"])
        return f"{version // 100}.{version % 100 // 10}"

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors."""
        return int(self.values["multiProcessorCount"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceProperties):
            return NotImplemented
        return dict(self.values) == dict(other.values)

    def __hash__(self) -> int:
        return hash(json.dumps(dict(self.values), sort_keys=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self.values),)

    def __str__(self) -> str:
        return (
            f"{self.name}, compute capability {self.compute_capability}, "
            f"{self.multiprocessors} multiprocessors"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


def parse_properties(value: Any, argument: str) -> DeviceProperties:
    """Return properties of a handle, of a card by its name, of a file, or as they are.

    A text that ends in ".json", or has a path's separator, is the path of a file.
    """
    if isinstance(value, DeviceProperties):
        return value
    if isinstance(value, NativeObject):
        return DeviceProperties.of(value)
    is_path = isinstance(value, os.PathLike)
    if isinstance(value, str):
        is_path = value.endswith(".json") or os.sep in value
    if is_path:
        with refused_as(ArgumentError, argument, ArgumentError):
            return DeviceProperties.load(value)
    if isinstance(value, str):
        with refused_as(ArgumentError, argument, ArgumentError):
            return DeviceProperties.named(value)
    raise ArgumentError(
        f"{argument}={shown(value)}; needed: DeviceProperties, the name of a card, the path of a "
        "file, or a handle"
    )


def _value(name: Any, value: Any) -> Any:
    """Return a property's value, if cuDNN has such a property and takes the value."""
    if name == "deviceName":
        if not isinstance(value, str) or not value.isascii() or "\0" in value:
            raise ArgumentError(f"deviceName={shown(value)}; needed: a text of ASCII characters")
        return value
    if name in _TRIPLES:
        if not isinstance(value, (list, tuple)) or len(value) != 3:
            raise ArgumentError(f"{name}={shown(value)}; needed: three integers")
        return tuple(integer(size, name, 1, _MOST) for size in value)
    if name == "totalGlobalMem":
        return integer(value, name, 1, _MOST_BYTES)
    if name in _INTEGERS:
        return integer(value, name, 0, _MOST)
    return value  # newer versions of cuDNN write further ones


def _properties_of(card: _Card) -> dict[str, Any]:
    """Return a card of the table as cuDNN's JSON has it."""
    architecture = _ARCHITECTURES[card.compute_capability]
    return {
        "deviceVer": card.compute_capability,
        "cudaDeviceId": 0,
        "totalGlobalMem": card.memory_gib << 30,
        "driverVer": _DRIVER,
        "maxGridSize": _LARGEST_GRID,
        "maxBlockSize": _LARGEST_BLOCK,
        "regsPerBlock": 65536,
        "multiProcessorCount": card.multiprocessors,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": architecture.shared_memory,
        "reservedSharedMemoryPerBlock": architecture.reserved_shared_memory,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": architecture.blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": architecture.threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "smClockRateKHz": card.clock_khz,
        "memClockRateKHz": card.memory_clock_khz,
        "memoryBusWidth": card.bus_bits,
        "l2CacheSize": card.l2_bytes,
        "deviceName": card.name,
    }
