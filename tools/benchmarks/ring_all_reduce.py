"""NCCL's sum of gradients over several GPUs: its measured time beside that of a ring.

    python -m tools.benchmarks.ring_all_reduce [--devices 0,1] [--bandwidth 200e9]

In a ring of k GPUs each sends a k-th of its N bytes k - 1 times to sum them and k - 1 times to
distribute the sums: 2 (k - 1) / k N bytes, so that at B bytes a second it takes 2 (k - 1) / k N / B.
B is that of one direction of one link; if it is not given, it is what the largest array reached.
Without GPUs the ring itself can be run, on NumPy arrays: `ring_sum`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = tuple(1 << power for power in range(16, 29, 2))  # bytes
ROUNDS, WARM_UP = 21, 5


def bytes_sent(gpus: int, nbytes: int) -> float:
    """Return the bytes that each GPU of a ring sends to sum arrays of `nbytes`."""
    return 2 * (gpus - 1) / gpus * nbytes


def model_seconds(gpus: int, nbytes: int, bandwidth: float) -> float:
    """Return the time of a ring whose links carry `bandwidth` bytes a second, without latency."""
    return bytes_sent(gpus, nbytes) / bandwidth


def ring_sum(arrays: Sequence[Array]) -> tuple[list[Array], list[int]]:
    """Sum arrays of one shape by a ring, and return each GPU's result and the bytes that it sent.

    At each step a GPU sends one part of its array to the next one.  After k - 1 steps each part is
    summed on one GPU; in k - 1 further steps the sums go round.
    """
    gpus = len(arrays)
    parts = [np.array_split(array.ravel().copy(), gpus) for array in arrays]
    sent = [0] * gpus
    for step in range(2 * (gpus - 1)):
        is_summing = step < gpus - 1
        numbers = [(gpu - step + (0 if is_summing else gpus)) % gpus for gpu in range(gpus)]
        messages = [parts[gpu][number].copy() for gpu, number in enumerate(numbers)]
        for gpu, (number, message) in enumerate(zip(numbers, messages, strict=True)):
            receiver = (gpu + 1) % gpus
            sent[gpu] += message.nbytes
            if is_summing:
                parts[receiver][number] += message
            else:
                parts[receiver][number] = message
    shape = arrays[0].shape
    return [np.concatenate(own).reshape(shape) for own in parts], sent


def median_seconds(call: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Return the median wall time of a call, until all GPUs are done."""
    times = []
    for _ in range(WARM_UP + ROUNDS):
        synchronize()
        begin = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


def measure(devices: Sequence[str]) -> dict[int, float]:
    """Return the seconds of NCCL's sum by the bytes of the arrays."""
    import cudnnlite as dnn

    sys.path.insert(0, str(EXAMPLES))
    from train_digits import adder

    seconds = {}
    with ExitStack() as stack:
        handles = [stack.enter_context(dnn.Handle(device)) for device in devices]
        for handle in handles:
            handle.stream = handle.device.create_stream()
        add = stack.enter_context(adder(handles))

        def synchronize() -> None:
            for handle in handles:
                handle.synchronize()

        for nbytes in SIZES:
            arrays = [handle.zeros((nbytes // 4,)) for handle in handles]
            lists = [[array] for array in arrays]
            seconds[nbytes] = median_seconds(lambda lists=lists: add(*lists), synchronize)  # type: ignore[misc]
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="0,1", help="numbers of GPUs")
    parser.add_argument("--bandwidth", type=float, help="bytes a second of a link, one direction")
    options = parser.parse_args()
    devices = [f"cuda:{number}" for number in options.devices.split(",")]
    seconds = measure(devices)
    gpus, largest = len(devices), max(seconds)
    bandwidth = options.bandwidth or bytes_sent(gpus, largest) / seconds[largest]
    print(f"{gpus} GPUs, {bandwidth / 1e9:.1f} GB/s a link\n")
    print("| MiB | NCCL, us | ring, us | ratio |\n| ---: | ---: | ---: | ---: |")
    for nbytes, measured in seconds.items():
        model = model_seconds(gpus, nbytes, bandwidth)
        cells = (f"{nbytes / 2**20:g}", f"{1e6 * measured:.1f}", f"{1e6 * model:.1f}")
        print(f"| {' | '.join(cells)} | {measured / model:.2f} |")


if __name__ == "__main__":
    main()
