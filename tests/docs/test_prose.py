"""The prose checker reads sentences, and nothing else."""

import pytest

pytest.importorskip("proselint")

from proselint.checks import __register__
from proselint.registry import CheckRegistry

from docs.prose import LONGEST, complaints

PAGE = """# The the title

The Jacobian is singular, $J J = 0$: see `wishes wishes`.

```python
print("verdict")
```

| a table | of numbers |
"""


@pytest.fixture(scope="module", autouse=True)
def rules() -> None:
    CheckRegistry().register_many(__register__)


def test_code_formulas_and_tables_are_not_prose() -> None:
    assert [line for line, _ in complaints(PAGE)] == [1]  # the title


@pytest.mark.parametrize("sentence", ["It wishes so.", "A verdict.", "The the step.", "word " * LONGEST + "word."])
def test_a_fault_is_found_in_its_line(sentence: str) -> None:
    assert {line for line, _ in complaints("First.\n\nSecond.\n" + sentence)} == {4}
