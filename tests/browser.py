"""The Chromium of this machine, for tests of pages. A module that imports this is skipped where there is none.

With ZOO_BROWSER_REQUIRED=1, which .ci/run sets, it is an error instead.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next(filter(None, map(shutil.which, NAMES)), None)  # playwright's own would have to be downloaded

if os.environ.get("ZOO_BROWSER_REQUIRED") == "1":
    if PATH is None:
        raise RuntimeError(f"ZOO_BROWSER_REQUIRED=1, and no browser is installed: none of {', '.join(NAMES)}.")
    import playwright.sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if PATH is None:  # checked here: a fixture would run after a page's server was started
        pytest.skip(f"no browser here: none of {', '.join(NAMES)}", allow_module_level=True)


@contextmanager
def open_browser() -> Iterator["playwright.Browser"]:
    """A running browser."""
    # a container may have no sandbox; what Chromium looks up by itself in the background is nothing of the page's
    flags = ["--no-sandbox", "--disable-background-networking"]
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=PATH, args=flags)
        yield opened
        opened.close()
