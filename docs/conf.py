"""The documentation site: the pages of this folder, the reference from docstrings, the examples as a gallery.

    pip install -e ".[docs]"
    sphinx-build -W --keep-going docs build/site

Every page is also one to read on its own, where the repository is browsed; README.md is the list of them there.
"""

import re

import pagedcache

project = "pagedcache"
author = "The pagedcache developers"
copyright = "2026, The pagedcache developers"
release = version = pagedcache.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["README.md", "_templates", "examples"]
templates_path = ["_templates"]
html_static_path = ["_static"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages whose headings skip a level, as they are read elsewhere too

autosummary_ignore_module_all = False
autosummary_imported_members = True
autosummary_context = {"on_top": set(pagedcache.__all__)}  # described once, where users import them from
autodoc_typehints = "none"  # numpydoc says them in words
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "numpy_model|tiny_backend",  # these are run; the others need their stack, or minutes
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 3600,
    "ignore_pattern": "__init__",
}

html_theme = "pydata_sphinx_theme"
html_title = "pagedcache"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_nav_level": 1,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"


def links_out_of_the_site(app, docname, source):
    """Files of the repository that are no page here are named, not linked."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`\2` in the repository)", source[0])


def setup(app):
    app.connect("source-read", links_out_of_the_site)
