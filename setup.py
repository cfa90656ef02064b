"""Builds the wheel. In it, the packages are inside `crosslingual_zoo`: their names are common, and a user's own folders
may have them. All else is in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGES = ("finetuning", "hub_cards", "modeling", "pretraining", "sample_corpus", "zoo_core")
NAMES = "|".join(PACKAGES)
IMPORTS = re.compile(rf"^( *(?:from|import) )(?=(?:{NAMES})[. ])", re.MULTILINE)
MODULES = re.compile(rf"(?<=[\"'])(?=(?:{NAMES})\.[a-z_{{}}.]+[\"'])")  # as strings: of python -m, of importlib


class BuildInside(build_py):
    """Builds, and moves what was built."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        inside = Path(self.build_lib, "crosslingual_zoo")
        for name in PACKAGES:
            shutil.copytree(Path(self.build_lib, name), inside / name, dirs_exist_ok=True)
            shutil.rmtree(Path(self.build_lib, name))
        for path in {*inside.rglob("*.py*")} - {*inside.glob("hub_cards/space/*")}:  # a Space has modeling/ next to it
            text = IMPORTS.sub(r"\1crosslingual_zoo.", path.read_text(encoding="utf-8"))
            path.write_text(MODULES.sub("crosslingual_zoo.", text), encoding="utf-8")


setup(cmdclass={"build_py": BuildInside})
