"""Settings of the documentation site: `make site` builds it into build/site.

The folder of sources is the whole repository, so that a link from one Markdown file to another
means the same on the site, on a code host and in an editor.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from poptorch_emu.version import __version__  # noqa: E402

project = "poptorch_emu"
author = "the authors of poptorch_emu"
version = release = __version__
extensions = ["myst_nb", "api_reference"]  # The second is tools/api_reference.py.

root_doc = "docs/index"
include_patterns = ["docs/**", "tutorials/**", "benchmarks/README.md", "*.md"]
exclude_patterns = [
    ".*",
    "*.egg-info",
    "**/.ipynb_checkpoints",
    "build",
    "csrc",
    "dist",
    "poptorch_emu",
    "tests",
    "tools",
]

# Notebooks are shown as they were saved: tools/notebooks.py runs them.
nb_execution_mode = "off"
# Formulas would need a script from elsewhere; a dollar is a dollar.
myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4
# Kinds of names that MyST would take for links to the net or to other projects.
myst_url_schemes = ["http", "https", "mailto"]

# Annotations name types of PyTorch and of the standard library, which have no pages here.
nitpick_ignore_regex = [("py:.*", ".*")]
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80
# Only some pages have code that says what language it is.
highlight_language = "text"

html_theme = "furo"
html_title = f"poptorch_emu {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["figures.js"]
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
