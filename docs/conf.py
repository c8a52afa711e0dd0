"""Sphinx settings. Build with ``python -m sphinx -W docs build/docs``."""

from __future__ import annotations

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
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "Thumbs.db", ".DS_Store"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types, shapes and dtypes in words
numpydoc_show_class_members = False  # _templates/autosummary/class.rst lists the members
numpydoc_class_members_toctree = False

html_theme = "pydata_sphinx_theme"
html_title = "implicitsolve"
html_theme_options = {"show_prev_next": False, "navigation_with_keys": False}
