"""Licenses of the data sets of a run.

The license is what a data set's own card states, on this disk or on the Hub; if it states none, what `licenses` of the
run's recipe names. Nothing is guessed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CardData, DatasetCard, HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError

from zoo_core.tables import HUB_ID, resolve_hub_path

HUB = "https://huggingface.co"
SECONDS = 10  # to wait for the Hub: a card is not worth more


def hub_id(path: str) -> bool:
    """Returns whether a path is an id of the Hub, owner/name; local/name of a mirror, and runs/name, are not."""
    return bool(HUB_ID.fullmatch(path)) and not path.startswith(("local/", "runs/"))


def data_licenses(
    tables: Iterable[dict[str, Any]], hub_root: str | None = None, named: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the license of each data set of `tables` (each with its `path`), by path, in their order.

    `id` is the Hub's identifier, or several with commas; `name` what the card calls a license of its own; `url` the
    data set's page on the Hub; `note` says who names the license, or why there is no id. `named` are licenses by path
    for data sets whose card names none.

    A data set's card is README.md of its folder (`hub_root`/<path>, or the path itself), or that of the Hub. Once the
    Hub could not be reached, no further card is requested.

    Raises ValueError for a hub_root that is no folder.
    """
    found: dict[str, dict[str, Any]] = {}
    reachable = True
    for path in dict.fromkeys(table["path"] for table in tables):
        folder = Path(resolve_hub_path(path, hub_root))
        on_hub = hub_id(path) and not Path(path).exists()
        url = f"{HUB}/datasets/{path}" if on_hub else None
        if folder.is_dir():
            found[path] = _of_file(folder / "README.md", url)
            if found[path]["id"] or not on_hub:
                continue
        if not on_hub:
            found[path] = _license(note="a local file, without a card")
            continue
        found[path] = _license(url=url)
        if reachable:
            try:
                data = HfApi().dataset_info(path, timeout=SECONDS).card_data
                found[path] = _stated(data, url) if data else _license(url=url, note="it has no card")
            except RepositoryNotFoundError:
                found[path] = _license(note="not found on the Hub")
            except HfHubHTTPError:  # another answer: the next request may succeed
                pass
            except (HTTPError, OSError):  # no connection, or offline by the environment
                reachable = False
    for path, license in (named or {}).items():
        if path in found and not found[path]["id"]:
            found[path] |= {"id": license, "note": "named in the recipe"}
    return found


def _license(
    id: str | None = None, name: str | None = None, url: str | None = None, note: str | None = None
) -> dict[str, Any]:
    return {"id": id, "name": name, "url": url, "note": note}


def _of_file(card: Path, url: str | None) -> dict[str, Any]:
    """What a card on this disk states."""
    if not card.is_file():
        return _license(url=url, note="it has no card")
    try:
        return _stated(DatasetCard.load(card).data, url)
    except (ValueError, yaml.YAMLError):
        return _license(url=url, note="its card cannot be read")


def _stated(data: CardData, url: str | None) -> dict[str, Any]:
    stated = data.get("license")
    stated = [name for name in (stated if isinstance(stated, list) else [stated]) if isinstance(name, str) and name]
    if not stated:
        return _license(url=url, note="its card names no license")
    return _license(", ".join(stated), data.get("license_name"), url)
