"""A report as one self-contained HTML page, readable offline and without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from spatialgrad.report.render.characters import without_controls
from spatialgrad.report.sections import Section


def render_html(sections: Sequence[Section], written: str) -> Iterator[str]:
    """All studies on one page, piece by piece: a page of many drawings takes megabytes.

    Args:
        sections: One per study.
        written: When the report was written.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = lambda values: Markup(script_data(values))
    # Drawings are generated markup, whose texts are already escaped.
    environment.filters["drawing"] = Markup
    style, script = _file("style.css"), _file("script.js")
    pieces = environment.get_template("page.html").generate(
        sections=sections,
        written=written,
        title=sections[0].title if len(sections) == 1 else "spatialgrad studies",
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(script),
    )
    return map(without_controls, pieces)


def content_policy(script: str) -> str:
    """The content security policy: embedded pictures, inline styles, and exactly this script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_data(values: Any) -> str:
    """JSON for a script element; no text in it can close the element."""
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("spatialgrad.report.render") / "page" / name).read_text(encoding="utf-8")
