"""The public names of the zoo, loaded when they are first used.

    from crosslingual_zoo import CamlmCollator, ErnieMForPreTraining, WordAligner

What is not in `__all__` is private.
"""

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent
_PACKAGES = ("modeling", "zoo_core", "pretraining", "finetuning", "hub_cards")
_MODULES = {
    alias.name: node.module
    for node in ast.parse((_FOLDER / "__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_MODULES)


def _check_packages() -> None:
    """Raises ImportError where a package of this zoo is hidden by another one of its name."""
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        place = Path(found.origin).resolve() if found and found.origin else None
        if place != _FOLDER.parent / name / "__init__.py":
            raise ImportError(
                f"{place or f'A folder {name}'} hides the package {name} that crosslingual_zoo needs "
                f"({_FOLDER.parent / name}). Rename it, or start Python with -P, which leaves its folder out."
            )


if not (_FOLDER / "modeling").is_dir():  # a checkout; in a wheel, the packages are in this one
    __path__.append(str(_FOLDER.parent))  # so that their names as in a wheel are found
    _check_packages()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
