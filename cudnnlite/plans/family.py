"""What the module of a family of operations is written with."""

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.plans.call import call
from cudnnlite.plans.documented import documented
from cudnnlite.problems.operation import Operation, check_alike, gradient_of

__all__ = ["DeviceArray", "Handle", "Operation", "call", "check_alike", "documented", "gradient_of"]
