"""The report as lines to read."""

from __future__ import annotations

from collections.abc import Mapping

from implicitsolve._report._self_test import Check


def sections(found: Mapping[str, Mapping[str, str]]) -> str:
    """Each section with its entries, aligned."""
    width = max(len(name) for section in found.values() for name in section)
    lines: list[str] = []
    for title, section in found.items():
        lines += [title, *(f"  {name:{width}}  {value}" for name, value in section.items())]
    return "\n".join(lines)


def verdict(check: Check) -> str:
    """Return ok or FAILED, seconds, what was tried, and what was wrong."""
    word = "ok" if check.ok else "FAILED"
    return f"  {word:6} {check.seconds:5.1f} s  {check.name}" + (f": {check.reason}" if check.reason else "")
