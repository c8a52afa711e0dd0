"""The parts of `benchmarks/gpu_suite.py`."""
