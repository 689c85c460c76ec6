"""Invalid arguments of devices, handles and arrays."""

from __future__ import annotations

import itertools
from decimal import Decimal
from types import SimpleNamespace

import numpy as np

import cudnnlite as dnn

from .case import Case


class BadDLPack:
    def __dlpack_device__(self):
        return "x"

    def __dlpack__(self, **options):
        return object()


CASES: dict[str, Case] = {
    "digits as a limit": (
        lambda h: dnn.Handle(h.device, workspace_limit="9" * 5000),
        r"^workspace_limit=",
    ),
    "array as a limit": (
        lambda h: dnn.Handle(h.device, workspace_limit=np.zeros((2, 2))),
        r"^workspace_limit=array",
    ),
    "device": (lambda h: dnn.Handle("emulated:" + "9" * 5000), r"^device='emulated:9"),
    "half a device": (
        lambda h: dnn.Handle(SimpleNamespace(copy_in=3)),
        r"^device=namespace\(copy_in=3\) is not a device",
    ),
    "no device": (
        lambda h: dnn.Workspace(itertools.count(), "10%"),
        r"^device=count\(0\) is not a device",
    ),
    "numbers of Python's that are no number of NumPy's": (
        lambda h: h.array([Decimal(1)]),
        "array of Decimal objects",
    ),
    "a view through a DLPack that lies": (lambda h: h.view(BadDLPack()), r"BadDLPack"),
    "an array through a DLPack that lies": (lambda h: h.array(BadDLPack()), r"BadDLPack"),
}
