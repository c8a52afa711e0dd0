"""Sphinx settings. Build with ``python -m sphinx -W docs build/docs``."""

from __future__ import annotations

import warnings
from typing import Any

import implicitsolve

project = "implicitsolve"
author = "implicitsolve developers"
copyright = "2026, implicitsolve developers"
version = release = implicitsolve.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
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
autodoc_mock_imports = ["torch"]
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
    r"\.(ConvergenceWarning|ImplicitLayer|Status|Trace)$",
    r"^implicitsolve\.torch\.Implicit(GRU|LSTM)$",  # whose signature is that of their base class
}
MADE_BY_THE_LIBRARY = r"Attributes\n\s*---"
numpydoc_validation_overrides = {"EX01": [MADE_BY_THE_LIBRARY], "PR01": [MADE_BY_THE_LIBRARY]}
suppress_warnings = ["config.cache"]  # a function among the settings of sphinx-gallery

copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor what is printed


def strict(gallery_conf: dict[str, Any], file: str, when: str) -> None:
    """Let a warning end a tutorial, and only there."""
    warnings.simplefilter("error" if when == "before" else "ignore")


sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",  # all are executed
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
    "header_links_before_dropdown": 7,
    "logo": {"text": "implicitsolve"},
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_prev_next": False,
}
