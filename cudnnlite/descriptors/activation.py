"""`ActivationDescriptor`."""

import ctypes
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnActivationDescriptor_t
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.enums import ActivationMode
from cudnnlite.specs.activation import ActivationSpec


class ActivationDescriptor(DeclaredDescriptor[cudnnActivationDescriptor_t], describes=ActivationSpec):
    """A `cudnnActivationDescriptor_t`.

    Examples
    --------
    >>> with dnn.ActivationDescriptor(dnn.ActivationSpec("elu", 0.5)) as activation_desc:
    ...     print(activation_desc.read_back().coef)
    0.5
    """

    _type = cudnnActivationDescriptor_t
    _create, _destroy = "cudnnCreateActivationDescriptor", "cudnnDestroyActivationDescriptor"
    _setter, _getter = "cudnnSetActivationDescriptor", "cudnnGetActivationDescriptor"
    _arguments = "mode", "reluNanOpt:nan", "coef"
    _besides = "cudnnSetActivationDescriptorSwishBeta", "cudnnGetActivationDescriptorSwishBeta"  # swish has its own

    def _set(self, spec: Any) -> None:
        super()._set(spec)
        if spec.mode == ActivationMode.SWISH:
            self.api.cudnnSetActivationDescriptorSwishBeta(self.ptr, spec.coef)

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> Any:
        """Read a native object back, by the getters."""
        spec, beta = super().read(api, native), ctypes.c_double()
        if spec.mode == ActivationMode.SWISH:
            api.cudnnGetActivationDescriptorSwishBeta(native, beta)
            spec = spec.replace(coef=beta.value)
        return spec
