"""`SpatialDescriptor`: what the descriptors of specs with a number for each spatial axis share."""

from __future__ import annotations

from typing import Any

from cudnnlite.arguments import instance_of
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.specs.steps import SpatialSpec


class SpatialDescriptor(NativeObject):
    """A descriptor of a `SpatialSpec`; what has one spatial axis is told to cuDNN, which wants two, as one pixel high.

    `spatial_rank` is the number of spatial axes where the spec has plain numbers; 2 if not given.
    """

    _missing: tuple[int, ...]  # what an axis of one pixel has, for each of the spec's steps

    def __init__(self, spec: SpatialSpec, spatial_rank: int | None = None) -> None:
        instance_of(spec, self._spec_type, "spec")
        rank = spec.spatial_rank or 2 if spatial_rank is None else spatial_rank
        steps = spec.steps(rank)
        self._steps = (
            tuple((one, *step) for one, step in zip(self._missing, steps, strict=True)) if rank == 1 else steps
        )
        super().__init__(spec)

    @classmethod
    def describing(cls, spec: Any, spatial_rank: int, handle: Any) -> Any:
        """Return a descriptor of a spec, for images with so many axes."""
        return cls(spec, spatial_rank=spatial_rank)
