"""Sphinx: MyST pages, an API reference from the docstrings, and nothing that needs a network to be read."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs" / "_extensions")]

from spatialgrad import __version__ as release  # noqa: E402

project = "spatialgrad"
author = "The spatialgrad developers"
copyright = f"2026, {author}"
version = release
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "plain_docstrings", "mathml", "study_reports"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Blocks of a language that Pygments does not know, or does not understand, would be warnings.
highlight_language = "text"

public_packages = [
    "spatialgrad",
    *(f"spatialgrad.{name}" for name in ("reparam", "models", "data", "train", "studies", "report")),
]
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
# Heavy, optional, and only base classes here.
autodoc_mock_imports = ["lightning", "pytorch_lightning", "transformers"]
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

html_title = "spatialgrad"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"**": ["sidebar-nav-bs"], "index": [], "method": [], "results": [], "changelog": []}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
