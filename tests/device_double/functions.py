"""CuPy's functions, by NumPy: with CuPy's signatures, on arrays of the device alone, with results on the device."""

import inspect
import sys
from typing import Any

import numpy as np

from tests.device_double.account import note, transfer
from tests.device_double.arrays import adopt, empty, empty_like, ndarray, unwrap, wrap

WITHOUT_DEVICE = """
    isdtype finfo iinfo dtype issubdtype promote_types newaxis pi e inf nan euler_gamma broadcast_shapes int_
    intp uintp float16 float32 float64 complex64 complex128 int8 int16 int32 int64 uint8 uint16 uint32 uint64
    bool_ floating integer complexfloating generic number inexact signedinteger unsignedinteger double single
"""
HOST = set(WITHOUT_DEVICE.split())  # NumPy's own, in CuPy too
ELEMENTWISE = """
    abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor
    cbrt ceil conj conjugate copysign cos cosh divide divmod equal exp exp2 expm1 fabs floor floor_divide fmax
    fmin frexp greater greater_equal hypot invert isfinite isinf isnan ldexp left_shift less less_equal log
    log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor maximum minimum mod multiply
    negative nextafter not_equal positive power reciprocal remainder right_shift rint sign signbit sin sinh
    sqrt square subtract tan tanh true_divide trunc
"""
UFUNCS = set(ELEMENTWISE.split())
SIGNATURES = """
    all(a, axis=None, out=None, keepdims=False)
    allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
    amax(a, axis=None, out=None, keepdims=False)
    amin(a, axis=None, out=None, keepdims=False)
    angle(z, deg=False)
    any(a, axis=None, out=None, keepdims=False)
    argmax(a, axis=None, dtype=None, out=None, keepdims=False)
    argmin(a, axis=None, dtype=None, out=None, keepdims=False)
    argsort(a, axis=-1, kind=None)
    array_equal(a1, a2, equal_nan=False)
    array_split(ary, indices_or_sections, axis=0)
    atleast_1d(*arys)
    atleast_2d(*arys)
    bincount(x, weights=None, minlength=None)
    broadcast_arrays(*args)
    broadcast_to(array, shape)
    can_cast(from_, to, casting='safe')
    clip(a, a_min, a_max, out=None)
    concatenate(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
    count_nonzero(a, axis=None)
    cumprod(a, axis=None, dtype=None, out=None)
    cumsum(a, axis=None, dtype=None, out=None)
    diag(v, k=0)
    diagonal(a, offset=0, axis1=0, axis2=1)
    diff(a, n=1, axis=-1, prepend=None, append=None)
    dot(a, b, out=None)
    einsum(*operands, **kwargs)
    expand_dims(a, axis)
    flip(a, axis=None)
    hstack(tup, *, dtype=None, casting='same_kind')
    imag(val)
    inner(a, b)
    isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
    isin(element, test_elements, assume_unique=False, invert=False)
    kron(a, b)
    matmul(*args, axes=None, axis=None, keepdims=False, casting='same_kind', dtype=None, signature=None, order='K', \
        out=None)
    matrix_transpose(x, /)
    max(a, axis=None, out=None, keepdims=False)
    mean(a, axis=None, dtype=None, out=None, keepdims=False)
    meshgrid(*xi, **kwargs)
    min(a, axis=None, out=None, keepdims=False)
    moveaxis(a, source, destination)
    nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None)
    ndim(a)
    nonzero(a)
    outer(a, b, out=None)
    pad(array, pad_width, mode='constant', **kwargs)
    permute_dims(a, axes=None)
    prod(a, axis=None, dtype=None, out=None, keepdims=False)
    ptp(a, axis=None, out=None, keepdims=False)
    ravel(a, order='C')
    real(val)
    repeat(a, repeats, axis=None)
    reshape(a, newshape, order='C', *, copy=None)
    result_type(*arrays_and_dtypes)
    roll(a, shift, axis=None)
    rollaxis(a, axis, start=0)
    round(a, decimals=0, out=None)
    searchsorted(a, v, side='left', sorter=None)
    shape(a)
    sort(a, axis=-1, kind=None)
    split(ary, indices_or_sections, axis=0)
    squeeze(a, axis=None)
    stack(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
    std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
    sum(a, axis=None, dtype=None, out=None, keepdims=False)
    swapaxes(a, axis1, axis2)
    take_along_axis(a, indices, axis)
    tensordot(a, b, axes=2)
    tile(A, reps)
    trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None)
    transpose(a, axes=None)
    tril(m, k=0)
    triu(m, k=0)
    unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True)
    var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
    vdot(a, b)
    vstack(tup, *, dtype=None, casting='same_kind')
    where(condition, x=None, y=None)
"""
WITHOUT_LAUNCH = """
    reshape transpose moveaxis swapaxes expand_dims squeeze broadcast_to broadcast_arrays diagonal atleast_1d
    atleast_2d split array_split matrix_transpose rollaxis permute_dims real imag ravel shape ndim result_type
    can_cast
"""
VIEWS = set(WITHOUT_LAUNCH.split())
ON_DEVICE = {"a", "x", "v", "m", "val", "ary", "array", "element", "ar", "z"}  # first parameters that must be arrays
WAITS = {"nonzero", "unique", "bincount"}  # the shape of their result is known to the device alone


def signatures() -> dict[str, inspect.Signature]:
    """CuPy's, by name."""
    names: dict[str, Any] = {}
    exec("\n".join(f"def {line.strip()}: ..." for line in SIGNATURES.strip().splitlines()), names)
    return {name: inspect.signature(found) for name, found in names.items() if inspect.isfunction(found)}


def reject_hosts(values: Any) -> None:
    """CuPy's functions take no array of NumPy's."""
    for value in values:
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if isinstance(value, (tuple, list)):
            reject_hosts(value)


def compute(function: Any, arguments: Any, keywords: Any) -> Any:
    """NumPy's function on what the arrays hold, without warnings; `out` is returned as it came."""
    reject_hosts((*arguments, *keywords.values()))
    out = keywords.get("out")
    with np.errstate(all="ignore"):
        result = function(*unwrap(arguments), **{name: unwrap(value) for name, value in keywords.items()})
    return wrap(result) if out is None else out


def ufunc(name: str) -> Any:
    function = getattr(np, name)

    def call(*arguments: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Any:
        note(name)
        keywords = {"out": out, "dtype": dtype, "casting": casting}
        return compute(function, arguments, {name: value for name, value in keywords.items() if value is not None})

    return call


def function(name: str, signature: inspect.Signature) -> Any:
    numpy_function = getattr(np, name)
    first = next(iter(signature.parameters))

    def call(*arguments: Any, **keywords: Any) -> Any:
        signature.bind(*arguments, **keywords)
        if first in ON_DEVICE and not isinstance([*arguments, *keywords.values()][0], ndarray):
            raise TypeError(f"cupy.{name} takes arrays of CuPy")
        if name not in VIEWS:
            note(name)
        if name in WAITS:
            transfer("to_host", name, 4)
        return compute(numpy_function, arguments, keywords)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    return compute(lambda *x: np.asarray(np.array_equal(*x, equal_nan=equal_nan)), (a1, a2), {})


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    note("allclose")
    return compute(lambda *x: np.asarray(np.allclose(*x, rtol=rtol, atol=atol, equal_nan=equal_nan)), (a, b), {})


def count_nonzero(a: Any, axis: Any = None) -> Any:
    note("count_nonzero")
    return compute(lambda x: np.asarray(np.count_nonzero(x, axis)), (a,), {})


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """Indices beyond the end begin anew; those of the host travel first."""
    if not (isinstance(indices, ndarray) or np.isscalar(indices)):
        indices = asarray(indices, dtype=int)
    note("take")
    length = a.size if axis is None else a.shape[axis]
    if length == 0 and np.size(unwrap(indices)):
        raise IndexError("cannot do a non-empty take from an empty axes.")
    return compute(lambda x, i, **out: np.take(x, i % max(length, 1), axis, **out), (a, indices), _given(out=out))


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return sys.modules["cupy"].nonzero(condition)
    if not isinstance(condition, ndarray):
        raise TypeError("cupy.where takes a condition of CuPy")
    note("where")
    return compute(lambda c, x, y: np.where(c.astype(bool), x, y), (condition, x, y), {})


def put(a: Any, ind: Any, v: Any, mode: str = "wrap") -> None:
    note("put")
    compute(lambda *x: np.put(*x, mode=mode), (a, ind, v), {})


def size(a: Any, axis: Any = None) -> int:
    return a.size if axis is None else a.shape[axis]


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    note("copyto")
    with np.errstate(all="ignore"):
        np.copyto(unwrap(dst), unwrap(src), casting, True if where is None else unwrap(where))  # type: ignore[arg-type]


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    return array(a, dtype, copy, order or "K", blocking=blocking)


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    if isinstance(obj, ndarray):
        made = obj.astype(obj.dtype if dtype is None else dtype, order=order, copy=bool(copy))
    elif isinstance(obj, (list, tuple)) and obj and all(isinstance(part, ndarray) for part in obj):
        made = sys.modules["cupy"].stack(obj).astype(dtype or np.result_type(*unwrap(tuple(obj))), copy=False)
    else:
        if copy is False:
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        with np.errstate(all="ignore"):
            host = np.asarray(obj, dtype=dtype)
        made = adopt(empty(host.shape, host.dtype, "F" if order in "FAK" and host.flags.fnc else "C"))
        made._host[...] = host
        transfer("to_device", "asarray", host.nbytes)
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    return a.astype(a.dtype if dtype is None else dtype, order="C", copy=False)


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> ndarray:
    return x.astype(dtype, copy=copy)


def copy(a: Any, order: str = "K") -> ndarray:
    return a.copy(order=order)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a, order=order)  # type: ignore[call-overload]


def _filled(made: ndarray, value: Any) -> ndarray:
    note("full")
    made._host[...] = unwrap(value)
    return made


def new(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return adopt(empty(shape, dtype, order))


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return _filled(new(shape, dtype, order), 0)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return _filled(new(shape, dtype, order), 1)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    return _filled(new(shape, np.asarray(unwrap(fill_value)).dtype if dtype is None else dtype, order), fill_value)


def new_like(prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    dtype = prototype.dtype if dtype is None else dtype
    return adopt(empty_like(prototype._host, dtype, order)) if shape is None else new(shape, dtype)


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return _filled(new_like(a, dtype, order, subok, shape), 0)


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return _filled(new_like(a, dtype, order, subok, shape), 1)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    return _filled(new_like(a, dtype, order, subok, shape), fill_value)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    note("arange")
    return wrap(np.arange(start, stop, step, dtype) if stop is not None else np.arange(0, start, step, dtype))


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    note("linspace")
    return wrap(np.linspace(start, stop, num, endpoint, retstep, dtype, axis))


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: str = "C") -> ndarray:
    return _filled(new((N, N if M is None else M), dtype, order), np.eye(N, M, k))


def identity(n: int, dtype: Any = float) -> ndarray:
    return eye(n, dtype=dtype)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    if isinstance(array, ndarray):
        return array
    raise TypeError("the double shares no memory")


def get_array_module(*args: Any) -> Any:
    return sys.modules["cupy"] if any(isinstance(x, ndarray) for x in args) else np


def _given(**keywords: Any) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if value is not None}


OWN = {
    found.__name__: found
    for found in (
        *(array_equal, allclose, count_nonzero, take, where, put, size, copyto, asarray, array, ascontiguousarray),
        *(astype, copy, asnumpy, zeros, ones, full, zeros_like, ones_like, full_like, arange, linspace, eye, identity),
        *(from_dlpack, get_array_module),
    )
}


def members() -> dict[str, Any]:
    """All of them, by CuPy's names."""
    made = {name: getattr(np, name) for name in HOST}
    made |= {name: function(name, signature) for name, signature in signatures().items()}
    made |= {name: ufunc(name) for name in UFUNCS} | OWN
    return made | {"empty": new, "empty_like": new_like, "bool": np.bool_, "ndarray": ndarray}
