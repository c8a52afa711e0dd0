"""Implementations of the kernels for particular machines; each is imported only when it is selected."""
