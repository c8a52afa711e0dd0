"""CUDA kernels for CuPy arrays: the module of a kernel is loaded by name when the kernel is first selected."""
