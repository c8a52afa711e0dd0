"""Word lattices in the formats of HTK, OpenFst and Kaldi."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, TypeAlias

from _lattices.lattice import Arc, Lattice

File: TypeAlias = str | os.PathLike[str]
SILENT = frozenset({"!NULL", "!SENT_START", "!SENT_END", "<s>", "</s>", "<eps>", "<sil>", "<epsilon>"})
FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
SHORT = {"NODES": "N", "LINKS": "L", "START": "S", "END": "E", "WORD": "W", "acoustic": "a", "language": "l"}


def lines(file: File, *, empty: bool = False) -> Iterator[str]:
    """Lines of a text file; it is compressed if its name ends in ".gz"."""
    opened: Callable[..., IO[str]] = gzip.open if os.fspath(file).endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8") as text:
        yield from (line.strip() for line in text if empty or line.strip())


def natural(base: float) -> Callable[[float], float]:
    """Natural logarithm of a score in a file of this base, where 0 stands for probabilities."""
    return (lambda score: score * math.log(base)) if base else math.log


def read_slf(file: File, *, silent: Collection[str] = SILENT) -> Lattice:
    """Read a lattice in the standard lattice format of HTK, with words on its links or nodes.

    Its scores ``a`` and ``l`` become natural logarithms, whatever the base in the file; ``acscale``, ``lmscale`` and
    ``wdpenalty`` are taken from it, other fields ignored. The words in `silent` count as none. Files that are
    incomplete, contain sublattices or are no lattices raise a ValueError.
    """
    header: dict[str, str] = {}
    nodes: dict[int, str] = {}
    links: list[dict[str, str]] = []
    for line in lines(file):
        pairs: list[tuple[str, str]] = FIELD.findall(line)
        fields = {SHORT.get(name, name): value.strip('"') for name, value in pairs}
        if "J" in fields:
            links.append(fields)
        elif "I" in fields:
            nodes[int(fields["I"])] = fields.get("W", "")
        elif not line.startswith("#"):
            header |= fields
    counts = header.get("N"), header.get("L")
    if counts != (str(len(nodes)), str(len(links))) or not nodes or "SUBLAT" in header:
        got = f"{len(nodes)} nodes and {len(links)} links of N={counts[0]} L={counts[1]}"
        raise ValueError(f"read_slf: `file` must be one lattice, complete and without sublattices, got {got}")
    log = natural(float(header.get("base", math.e)))

    def arc(link: Mapping[str, str]) -> Arc:
        target = int(link["E"])
        word = link.get("W", nodes[target])
        scores = (log(float(link[name])) if name in link else 0.0 for name in "al")
        return Arc(int(link["S"]), target, "" if word in silent else word, *scores)

    arcs = [arc(link) for link in links]
    start = int(header["start"]) if "start" in header else only(nodes, {arc.target for arc in arcs})
    end = int(header["end"]) if "end" in header else only(nodes, {arc.source for arc in arcs})
    if nodes[start] not in ("", *silent):  # its word belongs to no link
        arcs.append(Arc(before := min(nodes) - 1, start, nodes[start]))
        start = before
    scales = (float(header.get(key, default)) for key, default in (("acscale", 1), ("lmscale", 1), ("wdpenalty", 0)))
    return Lattice(arcs, start, end, *scales)


def only(nodes: Collection[int], others: Collection[int]) -> int:
    """The node that is not among the others."""
    left = [node for node in nodes if node not in others]
    if len(left) != 1:
        raise ValueError(f"read_slf: `file` must tell its start and end, got candidates {left}")
    return left[0]


def read_openfst(
    file: File, *, symbols: File | None = None, acceptor: bool = True, silent: Collection[str] = SILENT
) -> Lattice:
    """Read a lattice in the text format of OpenFst, as ``fstprint`` writes it.

    Its weights, which are -log, become acoustic scores. Its end is a node of its own, to which arcs with the final
    weights lead. `symbols` is a table of words and their numbers; without it the file contains words. If `acceptor`,
    arcs have one label, else two, of which the second is the word; the label 0 is silent too. Lines with a wrong number
    of fields, and files without a lattice, raise a ValueError.
    """
    names, labels, kind = word_names(symbols), 1 if acceptor else 2, "an acceptor" if acceptor else "a transducer"
    arcs: list[Arc] = []
    finals: list[tuple[int, float]] = []
    for line in lines(file):
        fields = line.split()
        if len(fields) not in (1, 2, labels + 2, labels + 3):
            raise ValueError(f"read_openfst: `file` must have lines of {kind}, got {line!r}")
        if len(fields) <= 2:
            finals.append((int(fields[0]), -float(fields[1]) if len(fields) == 2 else 0.0))
            continue
        label = fields[labels + 1]
        score = -float(fields[-1]) if len(fields) == labels + 3 else 0.0
        arcs.append(Arc(int(fields[0]), int(fields[1]), word_of(label, names, silent), score))
    if not arcs or not finals:
        raise ValueError("read_openfst: `file` must have arcs and final states")
    return closed(arcs, [(state, score, 0.0) for state, score in finals])


def read_kaldi(
    file: File, *, symbols: File | None = None, silent: Collection[str] = SILENT
) -> Iterator[tuple[str, Lattice]]:
    """Read the lattices of a text archive of Kaldi, as ``lattice-copy ark:- ark,t:-`` writes it, with their names.

    A lattice begins with its name and ends with an empty line. Compact ones have lines "source target word
    graph,acoustic,transitions", others two labels, of which the second is the word, and weights without transitions.
    Costs become scores: `language`, which here is that of the whole graph, and `acoustic`. Other lines, and names
    without arcs or final states, raise a ValueError.
    """
    names = word_names(symbols)
    for is_empty, group in itertools.groupby(lines(file, empty=True), key=lambda line: not line):
        if is_empty:
            continue
        name, *rest = group
        arcs, finals = list[Arc](), list[tuple[int, float, float]]()
        for line in rest:
            fields = line.split()
            weight = fields.pop() if "," in fields[-1] else ""
            if not all(field.isdecimal() for field in fields[:2]) or len(fields) not in (1, 3, 4):
                raise ValueError(f"read_kaldi: `file` must have a name, then states and arcs, got {line!r}")
            graph, acoustic = (-float(cost or 0) for cost in (weight or ",").split(",")[:2])
            if len(fields) == 1:
                finals.append((int(fields[0]), acoustic, graph))
            else:
                word = word_of(fields[-1], names, silent)
                arcs.append(Arc(int(fields[0]), int(fields[1]), word, acoustic, graph))
        yield name, closed(arcs, finals)


def word_names(symbols: File | None) -> dict[str, str]:
    """Words by their numbers in a table of symbols, if there is one."""
    table = (line.split() for line in lines(symbols)) if symbols is not None else ()
    return {number: word for word, number in table}


def word_of(label: str, names: Mapping[str, str], silent: Collection[str]) -> str:
    """The word of a label, empty where it stands for none."""
    word = names.get(label, label)
    return "" if label == "0" or word in silent else word


def closed(arcs: list[Arc], finals: list[tuple[int, float, float]]) -> Lattice:
    """A lattice that ends in one node more, to which the final states lead with their scores."""
    if not arcs or not finals:
        raise ValueError("a lattice must have arcs and final states")
    end = 1 + max(max(arc.source, arc.target) for arc in arcs)
    closing = [Arc(state, end, "", acoustic, graph) for state, acoustic, graph in finals]
    possible = [arc for arc in (*arcs, *closing) if arc.acoustic > -math.inf and arc.language > -math.inf]
    return Lattice(possible, arcs[0].source, end)
