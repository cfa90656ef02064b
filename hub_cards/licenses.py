"""Licenses: what the data sets of a run say of theirs, and whether an id for the weights is one that the Hub knows.

A license is what a data set's own card states, on this disk or on the Hub. Where it states none, or could not be read,
that is what is said: nothing is guessed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CardData, DatasetCard, HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError

from zoo_core.recipes import nearest
from zoo_core.tables import HUB_ID, resolve_hub_path

HUB = "https://huggingface.co"
SECONDS = 10  # to wait for the Hub: a card is not worth more
OTHER = "other"  # a license of its own: it needs a name and a link
# Identifiers that the Hub takes in a card's metadata: https://huggingface.co/docs/hub/repositories-licenses
IDENTIFIERS = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research
    intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit
    mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 open-mdw openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense
    wtfpl zlib
    """.split()
)


def hub_id(path: str) -> bool:
    """Whether a path is owner/name on the Hub; what a mirror has as local/name, and runs/name, are not there."""
    return bool(HUB_ID.fullmatch(path)) and not path.startswith(("local/", "runs/"))


def data_licenses(tables: Iterable[dict[str, Any]], hub_root: str | None = None) -> dict[str, dict[str, Any]]:
    """What is known of the license of each data set of `tables` (each with its `path`), by path, in their order.

    `id` is the Hub's identifier, or several with commas; `name` what the card calls a license of its own; `url` the
    data set's page on the Hub; `note` says why there is no id.

    A data set's card is README.md of its folder (`hub_root`/<path>, or the path itself), or that of the Hub; the Hub is
    asked no more once it could not be reached.

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
        found[path] = _license(url=url, note="not looked up")
        if reachable:
            try:
                data = HfApi().dataset_info(path, timeout=SECONDS).card_data
                found[path] = _stated(data, url) if data else _license(url=url, note="it has no card")
            except RepositoryNotFoundError:
                found[path] = _license(note="not found on the Hub")
            except HfHubHTTPError:  # it answered something else: the next data set may fare better
                pass
            except (HTTPError, OSError):  # no line, or offline by the environment
                reachable = False
    return found


def check_license(license: str, name: str | None = None, link: str | None = None) -> None:
    """Raises ValueError for an id that the Hub does not know, for `other` without name and link, and for these two with
    any other id."""
    if license not in IDENTIFIERS:
        near = nearest(license.lower(), sorted(IDENTIFIERS))
        raise ValueError(f"--license is {license!r}, which the Hub does not know. {near} Else give {OTHER!r}.")
    if license == OTHER and not (name and link):
        raise ValueError(f"--license is {OTHER!r}: give --license-name and --license-link as well.")
    if license != OTHER and (name or link):
        raise ValueError(f"--license is {license!r}: --license-name and --license-link are of {OTHER!r} alone.")


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
