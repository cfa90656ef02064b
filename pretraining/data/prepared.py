"""The manifest of a prepared folder, and the corpora of a recipe as it holds them.

    DIR/prepared.json         format, tokenizer, columns with their shards, corpora
    DIR/shards/<column>/      Arrow files (shards.py)
    DIR/alignments/           (2, M) rows of joined tables that belong together, .npy
    DIR/progress.jsonl        while it is being written: the shards that are finished

A corpus is what the recipe said of it, the fingerprints of its tables, and its one or two columns. Nothing of the
tables is opened to train on it: what the recipe says now is compared with what it said then.
"""

import io
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pretraining.data.shards import CorruptShard, Shard, ShardedColumn, damage
from pretraining.data.sources import Source, join_columns
from pretraining.recipe import Bitext, Monolingual, Recipe, named_corpora
from zoo_core.recipes import nearest, recipe_differences

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST, PROGRESS = "prepared.json", "progress.jsonl"
COMMAND = "python -m pretraining.tools.prepare --config RECIPE --output"
NOT_OF_TEXT = ("name", "size", "size_source")  # fields of a corpus that do not change what it holds


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What a prepared folder holds.

    Raises ValueError for a folder that is missing, unfinished, none of this kind, or of another format.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise ValueError(
            f"There are no prepared shards in {folder}, which {kind}. Nothing can be read from it. Name the folder "
            f"that `{COMMAND} DIR` wrote, or train without `prepared`."
        )
    if not path.is_file():
        if (folder / PROGRESS).is_file():
            raise ValueError(
                f"{folder} is prepared in part: {MANIFEST}, which is written last, is not there. Some of the text is "
                f"missing. Go on with {COMMAND} {folder}, which keeps what is finished."
            )
        raise ValueError(
            f"{folder} holds no {MANIFEST}: it is no folder of prepared shards. Nothing can be read from it. Name one "
            f"that `{COMMAND} DIR` wrote, or train without `prepared`."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Which shard holds what stands there alone. Restore it, or write the "
            f"folder anew: {COMMAND} another folder."
        ) from error
    if found != FORMAT:
        raise ValueError(
            f"{path} is of format {found}, and this version reads format {FORMAT}. Their files differ. Write the "
            f"shards anew into another folder: {COMMAND} DIR."
        )
    return manifest


def check_tokenizer(folder: Path, manifest: dict[str, Any], fingerprint: str) -> None:
    """Raises ValueError where a prepared folder holds tokens of another tokenizer."""
    if manifest["tokenizer_fingerprint"] != fingerprint:
        raise ValueError(
            f"{folder} was prepared with another tokenizer (fingerprint {manifest['tokenizer_fingerprint'][:12]}, and "
            f"that of the recipe is {fingerprint[:12]}). The same ids are other tokens there. Set `tokenizer` to the "
            f"one of that time, or prepare another folder: {COMMAND} DIR."
        )


def entry_of(corpus: Monolingual | Bitext) -> dict[str, Any]:
    """What the recipe says of a corpus that decides which text it holds."""

    def given(value: Any) -> Any:
        return {k: given(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    return {name: value for name, value in given(asdict(corpus)).items() if name not in NOT_OF_TEXT}


def identities_of(recipe: Recipe) -> list[str]:
    """The columns that identify rows, the first that a table has: they decide what is held out."""
    return list(dict.fromkeys([*join_columns(recipe), "id"]))


def prepared_corpora(recipe: Recipe, fingerprint: str) -> list[tuple[Source, list[ShardedColumn]]]:
    """The corpora of the recipe in the folder `recipe.prepared`, in the recipe's order; no table is opened.

    The size of a corpus that was a stream is counted, whatever the recipe declares. `fingerprint` is the tokenizer's.

    Raises ValueError as `read_manifest`, for shards of another tokenizer, for corpora that are not there or were
    prepared from other tables, and CorruptShard for files that are missing or of another size.
    """
    folder = Path(recipe.prepared)
    manifest = read_manifest(folder)
    check_tokenizer(folder, manifest, fingerprint)
    known = {corpus["name"]: corpus for corpus in manifest["corpora"]}
    entries = named_corpora(recipe)
    _check_entries(folder, known, entries, identities_of(recipe))
    columns: dict[str, ShardedColumn] = {}
    corpora = []
    for name, entry in entries.items():
        facts = known[name]
        for key in facts["columns"]:
            if key not in columns:
                shards = [Shard(**shard) for shard in manifest["columns"][key]["shards"]]
                columns[key] = ShardedColumn(folder, key, shards)
        declared = (None, None) if facts["streamed"] else (entry.size, entry.size_source)
        if facts["streamed"]:
            logger.info("%s was a stream: its size is counted, what the recipe declares is not used", facts["name"])
        source = Source(
            facts["name"],
            tuple(facts["languages"]),
            [],
            [],
            *declared,
            recipe.hub_root,
            alignment=_alignment(folder, facts["alignment"]),
            counts=dict(facts["counts"]),
            corpus=entry,
            prepared=facts["tables"],
        )
        corpora.append((source, [columns[key] for key in facts["columns"]]))
    return corpora


def _check_entries(
    folder: Path, known: dict[str, dict], entries: dict[str, Monolingual | Bitext], identities: list[str]
) -> None:
    missing = [name for name in entries if name not in known]
    if missing:
        raise ValueError(
            f"{folder} does not hold {', '.join(missing)}, which the recipe reads: it was prepared for other corpora "
            f"({', '.join(known)}). {nearest(missing[0], known)} Add what is missing: {COMMAND} {folder}, which keeps "
            "the others."
        )
    for name, entry in entries.items():
        facts = known[name]
        differences = recipe_differences(facts["entry"], entry_of(entry))
        if facts["identities"] != identities:
            before, now = (", else ".join(names) for names in (facts["identities"], identities))
            differences.append(f"rows identified by {before} -> {now} (bitext.join_on)")
        if differences:
            raise ValueError(
                f"Corpus {facts['name']} of {folder} is not that of the recipe: {'; '.join(differences)}. It holds "
                f"other text than the recipe names, or holds out other rows. Restore the recipe, or prepare it again: "
                f"{COMMAND} {folder}, which keeps what is the same."
            )


def _alignment(folder: Path, facts: dict[str, Any] | None) -> np.ndarray | None:
    if facts is None:
        return None
    if what := damage(folder, **facts):  # read as a whole when corpora are opened
        raise CorruptShard(folder / facts["file"], what)
    return np.load(folder / facts["file"], mmap_mode="r")


def as_npy(values: np.ndarray) -> bytes:
    """An array as the content of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()
