"""Formulas as MathML, which browsers show without a script. A command of LaTeX that docutils lacks is a warning."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging


def write_math(translator: Any, node: nodes.Node) -> None:
    """Writes a formula in a line, or a block of its own."""
    is_block = isinstance(node, nodes.math_block)
    try:
        text = tex2mathml(re.sub(r"\\dots\b", r"\\ldots", node.astext()), as_block=is_block)
    except MathError as error:
        logging.getLogger(__name__).warning("formula: %s", error, location=node)
        text = node.astext()
    text = text.replace("\N{REVERSE SOLIDUS OPERATOR}", "\N{SET MINUS}")  # more fonts have the latter
    translator.body.append(f'<div class="formula">{text}</div>' if is_block else text)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
