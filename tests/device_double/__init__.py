"""A double of CuPy 14, and of nvmath-python 1.0's cuDSS, for machines without a GPU: `install` puts it in CuPy's place.

It offers the functions that this project uses, with CuPy's own signatures, on arrays that refuse to become NumPy's;
kernels are compiled by g++ and run thread by thread; transfers, launches and memory are counted.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tests.device_double import account, cuda, functions, launches, linalg, nvmath, sparse
from tests.device_double.account import counts, peak, sites, transfers
from tests.device_double.arrays import shared
from tests.device_double.launches import launched

__all__ = ["counts", "install", "launched", "peak", "reset", "shared", "sites", "transfers"]


def reset() -> None:
    """Begin to count anew."""
    account.reset()
    launched.clear()


def _module(name: str, members: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None)
    sys.modules[name] = module
    return module


def install() -> ModuleType:
    """Put the double in CuPy's place, for this process."""
    parts = {
        "linalg": _module("cupy.linalg", {name: getattr(linalg, name) for name in ("__all__", *linalg.__all__)}),
        "fft": _module("cupy.fft", {}),
        "cuda": _module("cupy.cuda", cuda.members()),
        "RawModule": launches.RawModule,
        "RawKernel": launches.RawKernel,
        "get_default_memory_pool": cuda.MemoryPool,
        "__version__": "14.2.0",
    }
    for name in ("", ".sparse", ".bindings"):
        _module(f"nvmath{name}", {})
    _module("nvmath.sparse.advanced", {"DirectSolver": nvmath.DirectSolver})
    _module("nvmath.bindings.cudss", nvmath.bindings())
    _module("cupy.cuda.device", {"Device": cuda.Device})
    for name in ("cupyx", "cupyx.scipy"):
        _module(name, {})
    _module("cupyx.scipy.sparse", {kind.__name__: kind for kind in sparse.KINDS.values()})
    return _module("cupy", functions.members() | parts)
