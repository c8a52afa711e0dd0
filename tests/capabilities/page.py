"""The page of the reference that shows the table: ``python -m tests.capabilities.page`` writes it."""

from __future__ import annotations

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
    "split": "split",
}
ABOVE = """\
# Capabilities

<!-- Written by `python -m tests.capabilities.page`, from the table that tests/capabilities enforces. Do not edit. -->

Which function takes which arrays. Every cell is a test: a small problem is solved on arrays of that library, and the
answer compared with NumPy's. What comes back is of the library, device and precision of what was given.

| column | what is given |
| --- | --- |
| NumPy | NumPy arrays, float32 or float64, without Numba |
| and Numba | the same where Numba is installed |
| complex | NumPy arrays, complex64 or complex128 |
| CuPy | CuPy arrays: [On a GPU](../how_to/gpu.md) |
| torch | tensors of PyTorch on the CPU that do not require grad, as arrays of the array API standard |
| `implicitsolve.torch` | tensors of PyTorch that require grad, on the CPU or CUDA: [In PyTorch](../how_to/torch.md) |
| split | arrays that are split over ranks: [On many ranks](../how_to/mpi.md) |

"kernels": works, by compiled kernels of that library where sizes make them pay. "yes": works, by the functions of the
array library. "no": raises an exception at once, which says what to take instead; the numbers are explained at the end.
"–": does not apply.
"""
RULES = """
Whatever the function:

- Lists and whole numbers become float64, float16 becomes float32. Masked arrays, objects, dates and text are refused.
- Arrays of two libraries in one call are refused: nothing is copied between host and device without being asked for.
- A tensor that requires grad is refused outside `implicitsolve.torch`, since its gradient would be lost, and so is one
  on CUDA: as a CuPy array, `cupy.from_dlpack(tensor)`, it shares its memory.
"""


def text() -> str:
    """The page."""
    return "\n".join([ABOVE, *sections(), "## What refuses, and what to take instead\n", *refusals(), RULES])


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
