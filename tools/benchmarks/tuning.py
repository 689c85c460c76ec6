"""The time of tuning the distinct layers of ResNet-50 at batch 32, with a cold and a warm cache.

    python tools/benchmarks/tuning.py [--configs f32,tf32] [--interface descriptor]
                                      [--objective device] [--check]

'cold' is a new handle with a new cache.  'warm' is a new tuner that opens the cache again, so that
no result is left in the process.  The warm run must not reach the device: all C functions that it
calls are recorded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import convolution

import cudnnlite as dnn

# By the interface: the seconds of a cold run, and the milliseconds of a warm one.
TARGETS = {"descriptor": (3.5, 20.0), "graph": (3.5, 20.0), None: (15.0, 50.0)}


def layers(config):
    """Return the problems."""
    return [
        convolution.problem_of(shape, config)
        for shape in convolution.shapes("training")
        if shape.name.startswith("resnet50")
    ]


def run(config, path, policy):
    """Return (cold seconds, warm milliseconds, the C functions that the warm run called)."""
    problems = layers(config)
    begin = time.perf_counter()
    with dnn.Handle(
        "cuda", stream=dnn.devices.device_choice.get_device("cuda").create_stream()
    ) as handle:
        tuner = dnn.Tuner(handle, path, policy)
        cold = [tuner.choose(problem) for problem in problems]
        cold_s = time.perf_counter() - begin
        assert tuner.measured == len(problems)
        tuner.cache.close()
        called = record_calls(handle.api)
        begin = time.perf_counter()
        tuner = dnn.Tuner(handle, path, policy)
        warm = [tuner.choose(problem) for problem in problems]
        warm_ms = (time.perf_counter() - begin) * 1000
        assert tuner.measured == 0
        assert [(a.algorithm, a.math_type) for a in warm] == [
            (a.algorithm, a.math_type) for a in cold
        ]
        tuner.cache.close()
    return len(problems), cold_s, warm_ms, sorted(set(called))


def record_calls(api):
    """Return a list that gets the name of each C function when it is called."""
    called = []

    def recorded(name, function):
        def call(*arguments):
            called.append(name)
            return function(*arguments)

        return call

    for name in dir(api):
        if not name.startswith("cudnn"):
            continue
        function = getattr(api, name, None)
        if callable(function):
            setattr(api, name, recorded(name, function))
    return called


def main():
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--configs", default=",".join(convolution.CONFIGS))
    parser.add_argument(
        "--interface", choices=("descriptor", "graph"), help="only this one of cuDNN's"
    )
    parser.add_argument("--objective", choices=("latency", "device"), default="latency")
    arguments = parser.parse_args()
    good = True
    policy = dnn.TuningPolicy(arguments.objective, interface=arguments.interface)
    target_s, target_ms = TARGETS[arguments.interface]
    for config in arguments.configs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            count, cold_s, warm_ms, called = run(config, Path(folder) / "cache", policy)
        print(
            f"{config}: {count} layers, cold {cold_s:.2f} s (target {target_s:g}),",
            f"warm {warm_ms:.1f} ms (target {target_ms:g}),",
            f"calls in the warm run: {called or 'none'}",
        )
        good &= cold_s < target_s and warm_ms < target_ms
        good &= set(called) <= {"cudnnGetVersion", "cudnnDestroy"}  # A key contains the version.
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
