"""The program's words before and after rescoring."""

from pathlib import Path
from types import ModuleType

import pytest


def test_rescoring_finds_the_sentence_of_the_text(main: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["--best", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("the whether is find")
    assert lines[4].endswith("the weather is fine")


def test_files_are_read_and_pruned(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("go forward ten meters\n\ngo home\n")
    files = ["--text", str(tmp_path / "text"), "--lattice", str(Path(__file__).parent / "files" / "goforward.slf")]
    main.main([*files, "--beam", "100", "--steps", "5", "--rho", "1"])
    arcs = [int(line.split()[-2]) for line in capsys.readouterr().out.splitlines() if line.endswith("arcs:")]
    assert 0 < arcs[0] < 397
