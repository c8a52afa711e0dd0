"""Treebanks are read and written without loss, or with an error that names file and line."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.pos_tagging.treebanks import row, run

DON_T = [
    "# sent_id = 1",
    row("0.1", "pro", "_"),
    row("1-2", "don't", "_"),
    row(1, "do", "VBP"),
    row(2, "n't", "RB"),
    row("2.1", "go", "_"),
    row("2.2", "there", "_"),
    row(3, "#", "NN"),
]


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n\n\n\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_words_are_read_and_other_lines_kept(
    parts: dict[str, ModuleType], tmp_path: Path, end: str, line_end: str, mark: bytes
) -> None:
    path = tmp_path / "a.conllu"
    path.write_bytes(mark + ("\n".join(DON_T) + end).replace("\n", line_end).encode())
    (read,) = parts["conllu"].read_conllu(path)
    assert read.forms == ("do", "n't", "#")
    assert read.tags == ("VBP", "RB", "NN")
    assert read.lines == tuple(DON_T)


def test_writing_changes_the_tags_alone(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    source, target = tmp_path / "a.conllu", tmp_path / "b.conllu"
    source.write_text("\n".join(DON_T) + "\n\n", encoding="utf-8")
    conllu = parts["conllu"]
    read = conllu.read_conllu(source)
    conllu.write_conllu(target, read, [read[0].tags])
    assert target.read_bytes() == source.read_bytes()
    conllu.write_conllu(target, read, [["A", "B", "C"]])
    expected = list(DON_T)
    for line, (number, form, tag) in {3: (1, "do", "A"), 4: (2, "n't", "B"), 7: (3, "#", "C")}.items():
        expected[line] = row(number, form, tag)
    assert target.read_text(encoding="utf-8") == "\n".join(expected) + "\n\n"


MALFORMED = {
    "too few columns": ([row(1, "a", "X"), "2\tb\tc"], 2, "10 columns"),
    "a comment among the words": ([row(1, "a", "X"), "# no", row(2, "b", "X")], 2, "10 columns"),
    "a word left out": ([row(1, "a", "X"), row(3, "b", "X")], 2, "word 2 expected, got 3"),
    "begins at 2": ([row(2, "a", "X")], 1, "word 1 expected, got 2"),
    "an ID that is no number": ([row("x", "a", "X")], 1, "'x'"),
    "a range that begins late": ([row("2-3", "ab", "_"), row(1, "a", "X")], 1, "word 1 expected, got 2-3"),
    "a range that goes back": ([row(1, "a", "X"), row("2-1", "ab", "_")], 2, "got 2-1"),
    "overlapping ranges": ([row("1-3", "ab", "_"), row(1, "a", "X"), row("2-3", "c", "_")], 3, "got 2-3"),
    "a range beyond the end": ([row("1-3", "ab", "_"), row(1, "a", "X"), row(2, "b", "X")], 3, "ends at word 3"),
    "an empty node out of order": ([row(1, "a", "X"), row("1.2", "b", "_")], 2, "1.1 expected, got 1.2"),
    "no form": ([row(1, "", "X")], 1, "form"),
    "no tag": ([row(1, "a", "X"), row(2, "b", "_")], 2, "no tag"),
    "only comments": (["# a", "# b"], 2, "without words"),
    "not UTF-8": ([row(1, "a", "X"), "2\t\udcff"], 2, "not UTF-8"),
    "empty file": ([], 1, "no sentence"),
    "blank lines": (["", "", ""], 1, "no sentence"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_treebank_is_an_error_with_file_and_line(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, name: str
) -> None:
    lines, number, reason = MALFORMED[name]
    text = "\n".join([row(1, "fine", "X"), "", *lines]) + "\n" if lines and lines[0] else "\n".join(lines)
    line = number + 2 if lines and lines[0] else number
    path = data / "train.conllu"
    path.write_bytes(text.encode(errors="surrogateescape"))
    status, _, err = run(main, capsys, "--data", data, "--epochs", 1)
    assert status == 1
    assert err.startswith(f"pos_tagging: error: {path}:{line}: ")
    assert reason in err
    assert err.count("\n") == 1


def test_interrupted_writing_leaves_the_old_file_and_nothing_else(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)

    def write_then_stop() -> None:
        with parts["files"].atomic_write(path) as file:
            file.write(b"new, but not all of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_then_stop()
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    with parts["files"].atomic_write(path) as file:
        file.write(b"new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o640
