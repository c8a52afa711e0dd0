"""A double of CuPy for machines without a GPU: `install` puts it in CuPy's place.

It offers the functions that this project uses, on arrays that refuse to become NumPy's; kernels are compiled by g++ and
run thread by thread; transfers, launches and allocations are counted.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from tests.device_double import arrays, cuda, launches
from tests.device_double.arrays import counts, ndarray, note, refused, sites, transfer, unwrap, wrap

VIEWS = {
    *("reshape", "transpose", "moveaxis", "swapaxes", "expand_dims", "squeeze", "broadcast_to", "broadcast_arrays"),
    *("diagonal", "atleast_1d", "atleast_2d", "split", "array_split", "matrix_transpose", "rollaxis", "permute_dims"),
}
HOST = {  # what needs no device
    *("isdtype", "finfo", "iinfo", "result_type", "can_cast", "dtype", "issubdtype", "promote_types", "min_scalar_type"),
    *("newaxis", "pi", "e", "inf", "nan", "euler_gamma", "ndim", "shape", "size", "float32", "float64", "complex64"),
    *("complex128", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_", "float16"),
    *("floating", "integer", "complexfloating", "generic", "number", "inexact", "signedinteger", "unsignedinteger"),
    *("intp", "broadcast_shapes", "errstate", "int_", "uintp", "cfloat", "double", "single"),
}
FUNCTIONS = set(
    """
    abs absolute add all allclose amax amin angle any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh
    argmax argmin argsort array_equal bitwise_and bitwise_or bitwise_xor ceil clip concatenate conj conjugate copysign
    cos cosh count_nonzero cumprod cumsum cross diag divide dot einsum empty_like equal exp expm1 eye flip floor
    floor_divide fmax fmin full_like greater greater_equal hstack hypot identity imag inner invert isclose isfinite
    isin isinf isnan isreal kron ldexp left_shift less less_equal linspace log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor matmul max maximum mean meshgrid min minimum mod multiply nan_to_num negative
    nextafter nonzero not_equal ones_like outer positive power prod ravel real reciprocal remainder repeat right_shift
    rint roll round searchsorted sign signbit sin sinh sort sqrt square stack std subtract sum take take_along_axis tan
    tanh tensordot tile trace tri tril tril_indices triu triu_indices true_divide trunc unique vander var vdot vecdot
    vstack where zeros_like frexp fabs unstack unravel_index bincount
    """.split()
)
LINALG = set("lstsq cond matrix_power multi_dot eig eigvals tensorinv cholesky det eigh eigvalsh inv matrix_rank norm pinv qr slogdet svd tensordot".split())


def _function(function: Any, name: str) -> Any:
    is_view = name in VIEWS

    def call(*arguments: Any, **keywords: Any) -> Any:
        out = keywords.pop("out", None)
        if out is not None:
            keywords["out"] = unwrap(out)
        note(name, is_view)
        with np.errstate(all="ignore"):
            result = function(*unwrap(refused(arguments)), **unwrap(refused(keywords)))
        return out if out is not None else wrap(result, is_new=not is_view)

    call.__name__ = name
    return call


def asarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> ndarray:
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    return array(a, dtype=dtype)


def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", *args: Any, **keywords: Any) -> ndarray:
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, copy=bool(copy))
    if isinstance(obj, (list, tuple)) and any(isinstance(part, ndarray) for part in obj):
        return wrap(np.stack([np.asarray(unwrap(part)) for part in obj]).astype(dtype or obj[0].dtype), is_new=True)
    transfer("to_device", "asarray")
    with np.errstate(all="ignore"):
        return wrap(np.array(obj, dtype=dtype), is_new=True)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return wrap(arrays._allocate(shape, dtype))


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    note("full", False)
    value = unwrap(fill_value)
    made = empty(shape, np.asarray(value).dtype if dtype is None else dtype)
    made._host[...] = value
    return made


def _solve(a: ndarray, b: ndarray) -> ndarray:
    """Singular matrices give NaN, and no error."""
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)):
        raise TypeError("cupy.linalg.solve takes arrays of CuPy")
    if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    note("solve", False)
    A, x = a._host, b._host
    made = np.empty(np.broadcast_shapes(x.shape), np.result_type(A, x))
    for i in np.ndindex(A.shape[:-2]):
        try:
            made[i] = np.linalg.solve(A[i], x[i])
        except np.linalg.LinAlgError:
            made[i] = np.nan
    return wrap(made, is_new=True)


def from_dlpack(x: Any, **keywords: Any) -> ndarray:
    if isinstance(x, ndarray):
        return x
    raise TypeError("the double shares no memory")


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    if a.flags.c_contiguous and dtype in (None, a.dtype):
        return a
    return a.astype(a.dtype if dtype is None else dtype, order="C")


def get_array_module(*arguments: Any) -> Any:
    return sys.modules["cupy"] if any(isinstance(x, ndarray) for x in arguments) else np


def _module(name: str, names: Any, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    module.__dict__.update(members)
    return module


def reset() -> None:
    """Begin to count anew."""
    counts.clear()
    sites.clear()
    launches.launched.clear()


def make() -> ModuleType:
    """The module that stands for CuPy."""
    names: dict[str, Any] = {name: getattr(np, name) for name in HOST if hasattr(np, name)}
    for name in FUNCTIONS | VIEWS:
        if hasattr(np, name):
            names[name] = _function(getattr(np, name), name)
    names |= {
        name: globals()[name]
        for name in ("asarray", "array", "asnumpy", "empty", "zeros", "ones", "full", "from_dlpack", "ndarray")
    }
    names |= {"ascontiguousarray": ascontiguousarray, "get_array_module": get_array_module, "bool": np.bool_}
    names |= {"RawModule": launches.RawModule, "RawKernel": launches.RawKernel, "__version__": "14.2.0"}
    names |= {"abs": names["absolute"], "get_default_memory_pool": lambda: POOL}
    linalg = _module("cupy.linalg", {n: _function(getattr(np.linalg, n), n) for n in LINALG}, solve=_solve)
    module = _module("cupy", names, cuda=cuda, linalg=linalg, fft=_module("cupy.fft", {}))
    module.__path__ = []  # type: ignore[attr-defined]
    linalg.__all__ = [*LINALG, "solve"]  # type: ignore[attr-defined]
    return module


POOL = cuda.MemoryPool()


def install() -> ModuleType:
    """Put the double in CuPy's place, for this process."""
    module = make()
    device = _module("cupy.cuda.device", {"Device": cuda.Device})
    places = {"cupy": module, "cupy.linalg": module.linalg, "cupy.fft": module.fft, "cupy.cuda.device": device}
    for name, part in places.items():
        part.__spec__ = ModuleSpec(name, None)
    cuda.__path__ = []  # type: ignore[attr-defined]
    sys.modules.update(places, **{"cupy.cuda": cuda})
    return module
