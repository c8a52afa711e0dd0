"""The page of the reference that shows the table: ``python -m tests.capabilities.page`` writes it."""

from collections.abc import Iterator
from pathlib import Path

from tests.capabilities.table import ROWS, TABLE, Cell, Refuses, Row

PATH = Path(__file__).parents[2] / "docs" / "reference" / "capabilities.md"
COLUMNS = {
    "NumPy": "numpy",
    "and Numba": "numba",
    "complex": "complex",
    "CuPy": "cupy",
    "torch": "torch",
    "`implicitsolve.torch`": "bridge",
}
ABOVE = """\
# Capabilities

<!-- Written by `python -m tests.capabilities.page`, from the table that tests/capabilities enforces. Do not edit. -->

Which function accepts which arrays. Every cell is a test: a small problem is solved on arrays of that library, and the
answer compared with NumPy's. Results have the library, device and precision of the arguments.

| column | arguments |
| --- | --- |
| NumPy | NumPy arrays, float32 or float64, without Numba |
| and Numba | the same where Numba is installed |
| complex | NumPy arrays, complex64 or complex128 |
| CuPy | CuPy arrays: [On a GPU](../how_to/gpu.md) |
| torch | tensors of PyTorch on the CPU that do not require grad, as arrays of the array API standard |
| `implicitsolve.torch` | tensors of PyTorch that require grad, on the CPU or CUDA: [In PyTorch](../how_to/torch.md) |

"kernels": supported, by compiled kernels where the sizes make them worthwhile. "yes": supported, by the functions of
the array library. "no": raises at once, with an alternative in the message; the numbers are explained at the end. "–":
does not apply.
"""
RULES = """
Whatever the function:

- Lists and integers become float64, float16 becomes float32. Masked arrays, objects, dates and text raise a TypeError.
- Arrays of two libraries in one call raise a TypeError: nothing is copied implicitly between host and device.
- A tensor that requires grad raises a TypeError outside `implicitsolve.torch`, since its gradient would be lost, and so
  does one on CUDA: pass `cupy.from_dlpack(tensor)`, which shares its memory.
"""


def text() -> str:
    """The page."""
    return "\n".join([ABOVE, *sections(), "## Exceptions, and what to use instead\n", *refusals(), RULES])


def sections() -> Iterator[str]:
    for title, rows in TABLE.items():
        yield f"## {title}\n"
        yield f"| function | {' | '.join(COLUMNS)} |"
        yield "| --- |" + " --- |" * len(COLUMNS)
        for name, row in rows.items():
            yield f"| `{name}` | {' | '.join(shown(cell) for cell in cells(row))} |"
        yield ""


def cells(row: Row) -> list[Cell]:
    return [getattr(row, column) for column in COLUMNS.values()]


def shown(cell: Cell) -> str:
    return f"no ({REFUSALS.index(cell) + 1})" if isinstance(cell, Refuses) else cell


def refusals() -> Iterator[str]:
    for number, refusal in enumerate(REFUSALS, 1):
        yield f"{number}. `{refusal.error.__name__}`: {refusal.instead}."


REFUSALS = list(dict.fromkeys(cell for row in ROWS.values() for cell in cells(row) if isinstance(cell, Refuses)))

if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text(), encoding="utf-8")
