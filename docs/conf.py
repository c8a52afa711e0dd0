"""Sphinx settings. Build with ``python -m sphinx -W docs build/docs``."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from math_core import LatexError, LatexToMathML
from sphinx.util import logging

import implicitsolve

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from _tagging.errors import UserError
from _tagging.files import find_treebank

project = "implicitsolve"
author = "implicitsolve developers"
copyright = "2026, implicitsolve developers"
version = release = implicitsolve.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "Thumbs.db", ".DS_Store", "reference/generated/tutorials", "tutorials/*.ipynb"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

default_role = "autolink"  # `root` in a docstring links to its page
autosummary_filename_map = {  # beside functions of the same name, where file names have no case
    f"implicitsolve.{name}": f"implicitsolve.{name}-class" for name in ("Condition", "Contraction", "Spectrum")
}
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_mock_imports = ["jax", "torch"]
autodoc_typehints = "none"  # the docstrings say types, shapes and dtypes in words
numpydoc_show_class_members = False  # _templates/autosummary/class.rst lists the members
numpydoc_class_members_toctree = False
numpydoc_validation_checks = {
    "all",
    "ES01",  # no extended summary
    "PR08",  # a description begins in lower case: a formula
    "RT04",
    "SA01",  # no "See Also"
    "SA03",
    "SS05",  # "pull_back" is taken for the third person
}
numpydoc_validation_exclude = {
    r"\.[A-Z]\w*\.\w+$",  # members of classes, of which most need a line only
    r"\.(Communicator|Coupling|Monitor|silent)$",  # protocols, and a function that follows one
    r"\.(ConvergenceWarning|ImplicitLayer|ProgressBar|Status|Trace)$",
    r"^implicitsolve\.torch\.(Implicit|Diagonal|)(GRU|LSTM)$",  # whose signature is that of their base class
}
if importlib.util.find_spec("numba") is None:
    numpydoc_validation_exclude.add(r"^implicitsolve\.newton_batch$")  # a substitute, which says that Numba is missing
MADE_BY_THE_LIBRARY = r"Attributes\n\s*---"
numpydoc_validation_overrides = {"EX01": [MADE_BY_THE_LIBRARY], "PR01": [MADE_BY_THE_LIBRARY]}
suppress_warnings = ["config.cache"]  # a function among the settings of sphinx-gallery

# Formulas become MathML, which browsers render themselves: no page loads JavaScript or fonts from another host.
html_math_renderer = "mathml"
to_mathml = LatexToMathML()


def visit_math(translator: Any, node: Any) -> None:
    """Write a formula; one that cannot be converted is a warning."""
    display = node.tagname == "math_block"
    try:
        formula = to_mathml.convert_with_local_state(node.astext(), displaystyle=display)
    except LatexError as error:
        logging.getLogger(__name__).warning("%s", error, location=node)
        formula = f"<code>{html.escape(node.astext())}</code>"
    translator.body.append(f'<div class="formula">{formula}</div>' if display else formula)
    raise SkipNode


copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor what is printed


def strict(gallery_conf: dict[str, Any], file: str, when: str) -> None:
    """Let a warning end a tutorial, and only there."""
    warnings.simplefilter("error" if when == "before" else "ignore")
    warnings.filterwarnings("ignore", message=".*the estimated error of x is")  # training takes a loose tolerance of F


def missing(tutorial: str) -> str:
    """Return what a tutorial needs and this build does not have, or nothing."""
    if re.search("^import numba", tutorial, re.MULTILINE) and importlib.util.find_spec("numba") is None:
        return "Numba"
    if "find_treebank()" in tutorial:
        try:
            find_treebank()
        except UserError:
            return "the treebank"
    return ""


tutorials = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
skipped = {path.stem: need for path in tutorials if (need := missing(path.read_text(encoding="utf-8")))}
executed = "|".join(path.stem for path in tutorials if path.stem not in skipped)


def note_skipped(app: Any, page: str, source: list[str]) -> None:
    """Say below its title that a tutorial was not run."""
    if need := skipped.get(page.removeprefix("tutorials/")):
        note = f"\n\n.. note:: This tutorial was not run for this build, which lacks {need}: its output is missing.\n"
        source[0] = re.sub(r"\n={4,}\n", lambda line: line[0] + note, source[0], count=1)


sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": rf"({executed})\.py$",  # those that have what they need
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "backreferences_dir": "reference/generated/tutorials",  # which tutorials use a name: for its page in the reference
    "doc_module": ("implicitsolve",),
    "reset_modules": ("matplotlib", strict),
    "reset_modules_order": "both",
    "show_memory": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "implicitsolve"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_sidebars = {"index": []}
html_theme_options = {
    "footer_end": [],
    "footer_start": ["copyright"],
    "header_links_before_dropdown": 6,
    "logo": {"text": f"implicitsolve {release}"},
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_prev_next": True,
}
if address := os.environ.get("REPOSITORY_URL"):  # see CONTRIBUTING.md
    html_theme_options["icon_links"] = [{"name": "Repository", "url": address, "icon": "fa-solid fa-code-branch"}]


def setup(app: Any) -> None:
    """Register the renderer of formulas, and the notes."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", note_skipped)
