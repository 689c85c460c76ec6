"""What cuDNN opens by name when it computes on a GPU: cuBLAS, and NVRTC for engines that are compiled when they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cudnnlite.doctor.copies import wheel_of
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.doctor.loader import Wanted, look_up
from cudnnlite.doctor.places import Place


@dataclass(frozen=True)
class NeedsFacts:
    """What was gathered.

    Attributes
    ----------
    cuda_major : int
        The CUDA that the libcudnn in use was built with: 12.  0 if none is in use.
    cublas, nvrtc : Wanted or None
        What was found of libcublasLt and libnvrtc.
    gpu : bool
        Whether calls go to a GPU here.
    """

    cuda_major: int
    cublas: Wanted | None = None
    nvrtc: Wanted | None = None
    gpu: bool = False


def gather_needs(
    cuda_major: int,
    gpu: bool,
    mapped: tuple[str, ...],
    search_path: tuple[str, ...],
    environment: Mapping[str, str],
    cache: Mapping[str, tuple[str, ...]],
    places: tuple[Place, ...],
) -> NeedsFacts:
    """Look for both, as the loader would; see `loader.look_up` for the arguments."""
    if not cuda_major:
        return NeedsFacts(0)
    found = []
    for name, package in (("libcublasLt", "cublas"), ("libnvrtc", "cuda_nvrtc")):
        wanted = look_up(f"{name}.so.{cuda_major}", mapped, search_path, environment, cache, places)
        found.append(replace(wanted, wheel=wheel_of(wanted.path, package)))
    cublas, nvrtc = found
    return NeedsFacts(cuda_major, cublas, nvrtc, gpu)


def judge_needs(facts: NeedsFacts) -> Iterator[Finding]:
    """Tell whether cuDNN will find what it needs."""
    suffix = f"-cu{facts.cuda_major}" if facts.cuda_major < 13 else ""  # the wheels for CUDA 13 have none
    if facts.cublas is not None:
        bad = Verdict.BROKEN if facts.gpu else Verdict.NOTE
        yield _judge("library.cublas", "cuBLAS", facts.cublas, bad, f"nvidia-cublas{suffix}", "cuDNN needs it on a GPU")
    if facts.nvrtc is not None:
        bad = Verdict.WARNING if facts.gpu else Verdict.NOTE
        why = "without it cuDNN lacks the engines that it compiles when they run"
        yield _judge("library.nvrtc", "NVRTC", facts.nvrtc, bad, f"nvidia-cuda-nvrtc{suffix}", why)


def _judge(check: str, what: str, wanted: Wanted, bad: Verdict, package: str, why: str) -> Finding:
    plain = {
        "name": wanted.name,
        "path": wanted.path,
        "how": wanted.how,
        "wheel": wanted.wheel,
        "out_of_sight": wanted.out_of_sight,
    }
    if wanted.path:
        wheel = f", of {wanted.wheel}" if wanted.wheel else ""
        return Finding(
            check, Verdict.OK, f"{what} is there: {wanted.path}, found through {wanted.how}{wheel}", facts=plain
        )
    if wanted.out_of_sight:
        text = f"{what} ({wanted.name}) is at {wanted.out_of_sight}, where cuDNN does not look; {why}"
        folder = wanted.out_of_sight.rpartition("/")[0]
        return Finding(check, bad, text, f"add {folder} to LD_LIBRARY_PATH", facts=plain)
    return Finding(check, bad, f"{what} ({wanted.name}) was not found; {why}", f"pip install {package}", facts=plain)
