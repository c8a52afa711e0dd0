"""nvmath-python 1.0's interface to cuDSS, for the double: strict in the order of calls and in what operands may be.

Factors are SciPy's; as in cuDSS, a pivot that is too small is replaced, and nothing is said.
"""

import ctypes
import enum
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from tests.device_double.arrays import ndarray, unwrap, wrap
from tests.device_double.sparse import csr_matrix

PIVOT_EPSILON = 1e-13
calls: Counter[str] = Counter()
failing: set[str] = set()  # methods that raise cuDSSError, as without memory
alive: list[int] = [0]  # solvers that are not freed


class cuDSSError(Exception):  # noqa: N801 - nvmath's name
    pass


class MatchingAlg(enum.IntEnum):
    NONE = 0
    MAX_DIAG_PRODUCT = 5


class ConfigParam(enum.IntEnum):
    DETERMINISTIC_MODE = 24


def _called(name: str) -> None:
    calls[name] += 1
    if name in failing:
        raise cuDSSError(name)


class DirectSolver:
    def __init__(self, a: Any, b: Any, *, options: Any = None, execution: Any = None, stream: Any = None):
        if not isinstance(a, csr_matrix):
            raise TypeError(f"The LHS must be an N-D sparse CSR array/tensor, got {type(a)}")
        if a.shape[0] != a.shape[1] or a.indices.dtype != np.int32 or a.data.dtype.char not in "fdFD":
            raise TypeError("The LHS must be a CSR matrix of shape (N, N) of a supported dtype")
        if set(options or {}) - {"sparse_system_type", "multithreading_lib", "logger", "blocking", "handle"}:
            raise TypeError(f"unexpected options {options}")
        self._check_rhs(a, b)
        self.a, self.b = a, b
        self._buffers = a.data.data.ptr, a.indices.data.ptr, a.indptr.data.ptr
        self.plan_config = SimpleNamespace(matching_algorithm=MatchingAlg.NONE)
        self.config_ptr, self.config = id(self), {}
        configs[self.config_ptr] = self.config
        self.solver_planned = self.solver_factorized = False
        self.valid_state, self._lu, self._is_lost = True, None, False
        alive[0] += 1
        logger = (options or {}).get("logger") or logging.getLogger()
        logger.warning("No multithreading interface library was specified using the DirectSolverOptions.")

    @staticmethod
    def _check_rhs(a: Any, b: Any) -> None:
        if not isinstance(b, ndarray):
            raise TypeError("The LHS package cupyx and RHS package are not part of the compatible choices")
        if b.ndim != 1 or b.strides != (b.itemsize,):
            raise TypeError("The RHS must be a matrix or vector with col-major layout")
        if b.shape[0] != a.shape[0]:
            raise TypeError("The extent N is not consistent between the LHS and RHS.")
        if b.dtype != a.dtype:
            raise TypeError(f"The LHS dtype {a.dtype} does not match the RHS dtype {b.dtype}.")

    def _ready(self, **needed: bool) -> None:
        if not self.valid_state:
            raise RuntimeError("The DirectSolver object cannot be used after resources are free'd")
        for name, is_there in needed.items():
            if not is_there:
                raise RuntimeError(f"cannot be performed before {name}() has been called.")
        if self._buffers != (self.a.data.data.ptr, self.a.indices.data.ptr, self.a.indptr.data.ptr):
            raise AssertionError("cuDSS would read the matrix from memory that it no longer has")

    def reset_operands(self, *, a: Any = None, b: Any = None, stream: Any = None) -> None:
        self._ready()
        if a is None and b is None:
            raise ValueError("reset_operands() requires at least one operand to be provided.")
        if a is not None:
            self.a, self.solver_planned, self.solver_factorized = a, False, False
            self._buffers = a.data.data.ptr, a.indices.data.ptr, a.indptr.data.ptr
        if b is not None:
            self._check_rhs(self.a, b)
            self.b = b

    def plan(self, *, stream: Any = None) -> Any:
        self._ready()
        _called("plan")
        self.solver_planned = True
        estimates = np.zeros((), dtype=[("permanent_device_memory", "<u8"), ("peak_device_memory", "<u8")])
        estimates["permanent_device_memory"] = 100 * self.a.nnz
        self.plan_info = SimpleNamespace(memory_estimates=estimates.view(np.recarray))
        return self.plan_info

    def factorize(self, *, stream: Any = None) -> Any:
        self._ready(plan=self.solver_planned)
        _called("factorize")
        A: Any = self.a.host.tocsc()
        if not np.isfinite(A.data).all():
            raise AssertionError("cuDSS may take any time over such entries")
        self._is_lost = self.plan_config.matching_algorithm == MatchingAlg.NONE and (A.diagonal() == 0).any()
        try:
            self._lu = scipy.sparse.linalg.splu(A)
        except RuntimeError:
            perturbed = A + PIVOT_EPSILON * scipy.sparse.eye_array(A.shape[0], format="csc")
            self._lu = scipy.sparse.linalg.splu(scipy.sparse.csc_matrix(perturbed))
        self.solver_factorized = True
        return SimpleNamespace()

    def solve(self, *, stream: Any = None) -> Any:
        self._ready(plan=self.solver_planned, factorize=self.solver_factorized)
        _called("solve")
        x = self._lu.solve(unwrap(self.b))  # type: ignore[attr-defined]
        return wrap(x + 1.0 if self._is_lost else x)  # as where no row of a block has a pivot

    def free(self) -> None:
        if self.valid_state:
            self.valid_state = False
            alive[0] -= 1


configs: dict[int, dict[ConfigParam, int]] = {}


def config_set(config: int, param: int, value: int, size_in_bytes: int) -> None:
    configs[config][ConfigParam(param)] = ctypes.c_int32.from_address(value).value


def bindings() -> dict[str, Any]:
    """`nvmath.bindings.cudss`, as far as this project uses it."""
    return {
        "get_property": lambda i: (0, 8)[i],
        "get_config_param_dtype": lambda param: np.int32,
        "config_set": config_set,
        **{kind.__name__: kind for kind in (cuDSSError, MatchingAlg, ConfigParam)},
    }


def reset() -> None:
    """Begin to count anew; nothing fails."""
    calls.clear()
    failing.clear()
