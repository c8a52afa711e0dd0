"""`cupyx.scipy.sparse`, as far as this project uses it: matrices in compressed rows or columns, by SciPy."""

from typing import Any

import numpy as np
import scipy.sparse

from tests.device_double.account import note, transfer
from tests.device_double.arrays import ndarray, unwrap, wrap


class _Compressed:
    """Entries, indices and starts on the device, kept as they are given."""

    format = ""

    def __init__(self, arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False):
        if isinstance(arg1, (scipy.sparse.sparray, scipy.sparse.spmatrix)):
            host: Any = arg1.asformat(self.format)
            arg1, shape = tuple(wrap(part.copy()) for part in (host.data, host.indices, host.indptr)), host.shape
        data, indices, indptr = arg1
        if not all(isinstance(part, ndarray) and part.ndim == 1 for part in arg1):
            raise ValueError("data, indices, and indptr should be 1-D")
        if len(data) != len(indices):
            raise ValueError("indices and data should have the same size")
        if data.dtype.char not in "?fdFD":
            raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
        transfer("to_host", "index dtype", 8)  # CuPy looks for the largest index
        self.data = data.astype(data.dtype if dtype is None else dtype, copy=copy)
        self.indices, self.indptr = (part.astype(np.int32, copy=copy) for part in (indices, indptr))
        self.shape = tuple(shape)

    dtype = property(lambda self: self.data.dtype)
    nnz = property(lambda self: self.data.size)

    @property
    def host(self) -> Any:
        """SciPy's matrix on the same memory, which no code but this package may see."""
        kind = getattr(scipy.sparse, f"{self.format}_matrix")
        return kind(tuple(map(unwrap, (self.data, self.indices, self.indptr))), shape=self.shape)

    def _as(self, host: Any) -> Any:
        return KINDS[host.format](host)

    @property
    def has_canonical_format(self) -> bool:
        transfer("to_host", "has_canonical_format", 1)
        return bool(self.host.has_canonical_format)

    def sum_duplicates(self) -> None:
        host = self.host.copy()
        host.sum_duplicates()
        self.data, self.indices, self.indptr = map(wrap, (host.data, host.indices, host.indptr))

    def tocsr(self, copy: bool = False) -> Any:
        return self if self.format == "csr" and not copy else self._as(self.host.tocsr())

    def tocsc(self, copy: bool = False) -> Any:
        return self if self.format == "csc" and not copy else self._as(self.host.tocsc())

    def copy(self) -> Any:
        return self._as(self.host.copy())

    @property
    def T(self) -> Any:
        other = KINDS["csc" if self.format == "csr" else "csr"]
        return other((self.data, self.indices, self.indptr), self.shape[::-1])

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, ndarray):
            return NotImplemented
        note("spmv")
        return wrap(self.host @ unwrap(other))


class csr_matrix(_Compressed):  # noqa: N801 - CuPy's name
    format = "csr"


class csc_matrix(_Compressed):  # noqa: N801
    format = "csc"


KINDS: dict[str, Any] = {"csr": csr_matrix, "csc": csc_matrix}
for kind in KINDS.values():
    kind.__module__ = f"cupyx.scipy.sparse._{kind.format}"
