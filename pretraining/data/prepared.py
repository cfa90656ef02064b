"""Folders of token ids that `pretraining.tools.prepare` writes, and the corpora of a recipe in them.

    DIR/prepared.json               the tokenizer, the shards and rows of each column, the corpora; written last
    DIR/shards/<column>/<shard>/    data sets of `tokenize`, by `Dataset.save_to_disk`; and alignments of joined tables

The facts of a corpus are its entry in the recipe, the fingerprints of its tables, and its one or two columns. Training
does not open the tables: it compares the recipe's entry with the one in the facts.
"""

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, concatenate_datasets, load_from_disk
from transformers import PreTrainedTokenizerBase

from pretraining.data.sources import SIDES, Source, TextColumn, arrow_column, join_columns, plain_rows, row_identity
from pretraining.data.streams import no_text
from pretraining.data.tokenized import TokenColumn, tokenize
from pretraining.recipe_corpora import Bitext, Corpora, Monolingual
from zoo_core.provenance import read_json
from zoo_core.recipes import nearest, recipe_differences
from zoo_core.run_folders import not_own, remove_own
from zoo_core.tables import get_column

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST, SHARDS = "prepared.json", "shards"
# names of a column, of a shard in it, and of files that a killed process leaves in the folder
COLUMN, SHARD = r"[0-9a-f]{32}", r"\d{5}-of-\d{5}|\d{12}-\d{12}(-last)?|alignment"
HALF_WRITTEN = r"\.shard-\w{8}\.tmp|\.prepared\.json\.\d+\.tmp"
COMMAND = "python -m pretraining.tools.prepare --config RECIPE --output"
ROWS_OF_PROCESS = 1000  # fewer rows are not worth another process
NOT_OF_TEXT = ("name", "size", "size_source")  # fields of a corpus that do not change its text


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a prepared folder.

    Raises ValueError for a folder that is missing, unfinished, not prepared, or of another format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        unfinished = f"is not completely prepared. Continue with {COMMAND} {folder}"
        other = f"is not a prepared folder: it has no {MANIFEST}"
        raise ValueError(f"{folder} {unfinished if (folder / SHARDS).is_dir() else other}.")
    manifest = read_json(path, needs=["format"])
    if (found := manifest["format"]) != FORMAT:
        raise ValueError(f"{folder} has format {found}, but this version reads {FORMAT}. Prepare another folder.")
    return read_json(path, needs=("tokenizer", "tokenizer_fingerprint", "columns", "corpora"))


def others_in(folder: Path) -> list[str]:
    """Lists entries of a folder without manifest that are not from `prepare`: no shards are written next to them."""
    if not folder.is_dir() or (folder / MANIFEST).is_file():
        return []
    shards = folder / SHARDS
    found = not_own(shards, COLUMN) if shards.is_dir() and not shards.is_symlink() else []
    return [*not_own(folder, f"{SHARDS}|{HALF_WRITTEN}"), *(f"{SHARDS}/{name}" for name in found)]


def tidy(folder: Path, shards: list[str]) -> None:
    """Removes shards that the manifest does not name, and files of killed processes."""
    remove_own(folder, HALF_WRITTEN)
    named = {folder / shard for shard in shards}
    named |= {path.parent for path in named}  # a shard of a stream has one for each side
    for column in (folder / SHARDS).iterdir():
        if re.fullmatch(COLUMN, column.name):
            remove_own(column, SHARD, named)


def check_tokenizer(folder: Path, manifest: dict[str, Any], fingerprint: str) -> None:
    """Raises ValueError if a prepared folder has tokens of another tokenizer."""
    if manifest["tokenizer_fingerprint"] != fingerprint:
        raise ValueError(f"{folder} was prepared with another `tokenizer`, {manifest['tokenizer']}. Use that one.")


def entry_of(corpus: Monolingual | Bitext) -> dict[str, Any]:
    """Returns the fields of a corpus in the recipe that determine its text."""

    def given(value: Any) -> Any:
        return {k: given(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    return {name: value for name, value in given(asdict(corpus)).items() if name not in NOT_OF_TEXT}


def identities_of(corpora: Corpora) -> list[str]:
    """Returns the columns that may identify rows, for held-out text; a table uses the first that it has."""
    return list(dict.fromkeys([*join_columns(corpora), "id"]))


def prepared_corpora(
    corpora: Corpora, folder: Path, fingerprint: str, hub_root: str | None = None
) -> list[tuple[Source, list[TokenColumn]]]:
    """Reads the corpora of a recipe from their prepared folder, in the recipe's order, without opening the tables.

    If a corpus was a stream, its size is counted, and the declared one is ignored. `fingerprint` is the tokenizer's.

    Raises ValueError as `read_manifest`, for shards of another tokenizer or that cannot be read, and for corpora that
    are missing or were prepared from other tables.
    """
    manifest = read_manifest(folder)
    check_tokenizer(folder, manifest, fingerprint)
    known = {corpus["name"]: corpus for corpus in manifest["corpora"]}
    columns: dict[str, TokenColumn] = {}
    found = []
    for name, entry in corpora.items():
        _check_corpus(folder, known, name, entry, identities_of(corpora))
        facts = known[name]
        for key in facts["columns"]:
            if key not in columns:
                rows = read_rows(folder, manifest["columns"][key]["shards"])
                if len(rows) != (wanted := manifest["columns"][key]["rows"]):
                    raise ValueError(
                        f"{folder}/{SHARDS}/{key} has {len(rows)} rows, not {wanted}. Remove it and prepare again."
                    )
                columns[key] = TokenColumn(rows, key)
        if facts["streamed"]:
            logger.info("%s was a stream: its size is counted, and the recipe's `size` is not used", name)
        declared = (None, None) if facts["streamed"] else (entry.size, entry.size_source)
        alignment = None
        if facts["alignment"] is not None:
            rows = read_rows(folder, [facts["alignment"]]).data
            alignment = np.stack([rows.column(side).to_numpy() for side in SIDES])
        source = Source(
            name,
            tuple(facts["languages"]),
            [],
            [],
            *declared,
            hub_root,
            alignment=alignment,
            counts=dict(facts["counts"]),
            corpus=entry,
            prepared=facts["tables"],
        )
        found.append((source, [columns[key] for key in facts["columns"]]))
    return found


def read_rows(folder: Path, shards: list[str]) -> Dataset:
    """Reads the rows of some shards. Raises ValueError for a shard that cannot be read."""
    parts = []
    for shard in shards:
        try:
            parts.append(load_from_disk(folder / shard))
        except (OSError, ValueError) as error:  # pyarrow's are ValueErrors
            raise ValueError(
                f"the shard {folder / shard} cannot be read ({error}). Remove it and prepare again."
            ) from error
    return concatenate_datasets(parts)


def _check_corpus(
    folder: Path, known: dict[str, dict], name: str, entry: Monolingual | Bitext, identities: list[str]
) -> None:
    if name not in known:
        raise ValueError(f"{folder} does not contain {name}. Add it with {COMMAND} {folder}. {nearest(name, known)}")
    differences = recipe_differences(known[name]["entry"], entry_of(entry))
    if known[name]["identities"] != identities:
        before, now = (", else ".join(names) for names in (known[name]["identities"], identities))
        differences.append(f"rows identified by {before} -> {now} (bitext.join_on)")
    if differences:
        raise ValueError(
            f"{name} in {folder} differs from the recipe ({'; '.join(differences)}). Prepare it again with {COMMAND} "
            f"{folder}."
        )


def column_keys(source: Source, fingerprint: str) -> list[str]:
    """Returns the name of the folder for each side of a source; sides with the same text have the same key."""
    tables, keys = source.table_facts(), []
    separated = isinstance(source.corpus, Bitext) and source.corpus.separator is not None
    for number, side in enumerate(source.sides):
        table = tables[min(number, len(tables) - 1)]
        parts = [FORMAT, fingerprint, *(table.get(name) for name in ("config", "split", "format", "fingerprint"))]
        parts += [table["delimiter"]] if "delimiter" in table else []
        parts += [side.column, side.identity, side.document, side.document_pattern]
        parts += [] if side.reading == "text" else [side.reading]
        parts += [source.corpus.separator, source.corpus.source_column] if separated else []
        parts += [source.name, number] if source.streaming else []  # its sides are cut at the same rows
        keys.append(_hash(parts))
    return keys


@dataclass
class ShardWriter:
    """Writes the shards of columns into a prepared folder. A shard is renamed after writing, so it is always complete.

    A shard has about `shard_bytes` of text, which `num_workers` processes tokenize; `tokens` counts written tokens.
    """

    folder: Path
    tokenizer: PreTrainedTokenizerBase
    num_workers: int
    shard_bytes: int
    tokens: int = 0

    def write_table(self, side: TextColumn, key: str) -> dict[str, Any]:
        """Writes a text column of a table, and returns its facts for the manifest."""
        texts = arrow_column(side.rows, side.column)
        size = 0 if pa.types.is_null(texts.type) else pc.sum(pc.binary_length(texts)).as_py() or 0
        count = max(1, min(len(side.rows), -(-size // self.shard_bytes)))
        shards, first = [], 0
        for number in range(count):
            part = replace(side, rows=side.rows.shard(count, number, contiguous=True))
            settings = {"first": first, "desc": f"Shard {number + 1} of {count}"}
            shards.append(f"{SHARDS}/{key}/{number:05d}-of-{count:05d}")
            self._save(shards[-1], lambda cache, part=part, settings=settings: self._tokenize(part, cache, **settings))
            first += len(part.rows)
        return self._facts(shards)

    def write_stream(
        self, source: Source, keys: list[str], max_rows: int | None, before: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Writes the sides of a stream, and returns the facts of each for the manifest. Finished shards are kept.

        The shard at the end of the rows is called `-last`: it is written again if more rows are needed.
        """
        known = [before.get(key) for key in keys]
        if all(facts and facts["max_rows"] == max_rows and self._are_there(facts["shards"]) for facts in known):
            return dict(zip(keys, known, strict=True))
        place = f"{SHARDS}/{_hash(keys)}"
        shards, first = self._full_shards(place, max_rows)
        sides: list[dict[str, list]] = [{"text": [], "identity": []} for _ in keys]

        def cut(stop: int, end: str = "") -> None:
            def make(cache: str) -> DatasetDict:
                columns = [TextColumn(Dataset.from_dict(side), "text", "identity") for side in sides]
                parts = {str(n): self._tokenize(column, None) for n, column in enumerate(columns)}
                return DatasetDict(parts)

            shards.append(f"{place}/{first:012d}-{stop:012d}{end}")
            self._save(shards[-1], make)
            for side in sides:
                side["text"].clear(), side["identity"].clear()

        filled, rows = 0, source.sides[0].rows
        for number, row in enumerate(plain_rows(rows.skip(first) if first else rows), start=first):
            if number == max_rows:
                break
            for column, side in zip(source.sides, sides, strict=True):
                side["text"].append(text := get_column(row, column.column))
                side["identity"].append(str(row_identity(row, number, column.identity)))
                filled += len((text or "").encode())
            if filled >= self.shard_bytes:
                cut(number + 1)
                first, filled = number + 1, 0
        if sides[0]["text"]:
            cut(first + len(sides[0]["text"]), "-last")
        if not shards:
            raise ValueError(no_text(source.name))
        return {
            key: self._facts([f"{shard}/{number}" for shard in shards]) | {"max_rows": max_rows}
            for number, key in enumerate(keys)
        }

    def corpus(self, source: Source, keys: list[str], columns: dict[str, Any], identities: list[str]) -> dict[str, Any]:
        """Returns the facts of a corpus for the manifest, and writes the alignment of its sides."""
        tables, shard = source.table_facts(), None
        if source.streaming:  # another fingerprint than the stream, so that a run cannot change from one to the other
            rows = columns[keys[0]]["rows"]
            tables = [table | {"fingerprint": f"prepared:{rows}:{table['fingerprint']}"} for table in tables]
        if source.alignment is not None:
            shard = f"{SHARDS}/{_hash([*keys, source.corpus.join_on])}/alignment"
            self._save(shard, lambda cache: Dataset.from_dict(dict(zip(SIDES, source.alignment, strict=True))))
        return {
            "name": source.name,
            "languages": list(source.languages),
            "entry": entry_of(source.corpus),
            "identities": identities,
            "streamed": source.streaming,
            "tables": tables,
            "columns": keys,
            "alignment": shard,
            "counts": source.counts,
        }

    def _tokenize(self, column: TextColumn, cache: str | None, **settings: Any) -> Dataset:
        workers = min(self.num_workers, len(column.rows) // ROWS_OF_PROCESS)
        settings |= {"num_proc": workers if workers > 1 else None, "cache_file_name": cache}
        rows = tokenize(column, self.tokenizer, new_fingerprint=_hash([cache]), **settings)
        self.tokens += _tokens(rows)
        return rows

    def _save(self, shard: str, make: Callable[[str], Dataset | DatasetDict]) -> None:
        """Saves the result of `make(file for its cache)`, unless the shard exists."""
        if (self.folder / shard).is_dir():
            return
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".shard-", suffix=".tmp") as aside:
            make(f"{aside}/cache.arrow").save_to_disk(f"{aside}/shard")
            (self.folder / shard).parent.mkdir(parents=True, exist_ok=True)
            os.replace(f"{aside}/shard", self.folder / shard)
        logger.info("wrote %s; %s tokens so far", shard, f"{self.tokens:,}")

    def _facts(self, shards: list[str]) -> dict[str, Any]:
        rows = read_rows(self.folder, shards)
        return {"shards": shards, "rows": len(rows), "tokens": _tokens(rows)}

    def _are_there(self, shards: list[str]) -> bool:
        return all((self.folder / shard).is_dir() for shard in shards)

    def _full_shards(self, place: str, max_rows: int | None) -> tuple[list[str], int]:
        """Returns the full shards at the start of a stream, without gaps, and their number of rows."""
        shards, rows = [], 0
        for path in sorted((self.folder / place).glob("*[0-9]")):
            if not re.fullmatch(r"\d{12}-\d{12}", path.name):
                continue
            first, stop = map(int, path.name.split("-"))
            if first == rows and (max_rows is None or stop <= max_rows):
                shards.append(f"{place}/{path.name}")
                rows = stop
        return shards, rows


def _tokens(rows: Dataset) -> int:
    return pc.sum(pc.list_value_length(rows.data.column("ids"))).as_py() or 0


def _hash(parts: list) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
