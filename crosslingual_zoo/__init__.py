"""The public names of the zoo, loaded when they are first used.

    from crosslingual_zoo import CamlmCollator, ErnieMForPreTraining, WordAligner

What is not in `__all__` is private.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent
_MODULES = {
    alias.name: node.module
    for node in ast.parse((_FOLDER / "__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_MODULES)  # pyrefly: ignore[unresolvable-dunder-all]  # checkers read __init__.pyi


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
