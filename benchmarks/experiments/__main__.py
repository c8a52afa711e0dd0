"""Write the experiments' pages from the stored results, or check them: ``python -m benchmarks.experiments check``."""

from __future__ import annotations

import argparse

from benchmarks.experiments._pages import faults, pages


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments", description=__doc__)
    parser.add_argument("action", choices=("pages", "check"), help="write the pages, or check every number on them")
    if parser.parse_args().action == "pages":
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
    if found := faults():
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
