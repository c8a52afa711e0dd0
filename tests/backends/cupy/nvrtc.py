"""NVIDIA's run-time compiler, which CuPy compiles its kernels with and which needs no GPU, by ctypes."""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

ADDED_BY_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # cupy/cuda/compiler.py


@cache
def library() -> ctypes.CDLL | None:
    """The compiler of the wheel nvidia-cuda-nvrtc, with the library that it looks for beside it; None without one."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    found = sorted(
        path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*") if ".alt." not in path.name
    )
    if not found:
        return None
    for path in sorted(found[-1].parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    made = ctypes.CDLL(str(found[-1]))
    made.nvrtcGetErrorString.restype = ctypes.c_char_p
    return made


def architectures() -> list[int]:
    """Compute capabilities that it knows, such as 90."""
    count = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check(library().nvrtcGetSupportedArchs(known))
    return sorted(known)


def compile_source(text: str, options: tuple[str, ...]) -> str:
    """Compile a source as CuPy does, and return the log.

    Raises
    ------
    RuntimeError
        With the log, if it does not compile.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kern.cu", 0, None, None))
    try:
        given = [option.encode() for option in (*options, *ADDED_BY_CUPY)]
        status = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if status:
        raise RuntimeError(log.value.decode())
    return log.value.decode()


def _check(status: int) -> None:
    if status:
        raise RuntimeError(library().nvrtcGetErrorString(status).decode())
