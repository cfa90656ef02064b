"""What must not stand inside a file that is given away: paths of a machine, marks of a local load, and secrets.

Text is read as its readers do: the strings and keys of JSON, and the notes in a safetensors header. Of other binary
files, which readers take as they are, only what is plainly the path of a machine is looked for.
"""

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from hub_cards.record import ABSOLUTE, OF_THE_MACHINE

TEXT = {".json", ".jsonl", ".yaml", ".yml", ".md", ".txt", ".py", ".csv", ".tsv", ".jinja", ".bib", ""}
VOCABULARIES = {"vocab.txt", "merges.txt", "vocab.json"}  # tokens look like anything
CHECKS_OF_PATHS = ("config.json", "generation_config.json", "tokenizer_config.json", "modules.json")
SECRETS = re.compile(
    r"(?<![A-Za-z0-9])((hf|api_org)_[A-Za-z0-9]{30,}|gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|AKIA[0-9A-Z]{16})"
    r"(?![A-Za-z0-9])|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^\s/:@\"]+:[^\s/:@\"]+@"
)
WINDOWS_PATH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\\\?[\w .-]+\\|\\\\\\\\[\w.-]+\\|file://")
OUTSIDE = re.compile(r"(^|[/\\])\.\.([/\\]|$)")
# Of binary files: homes and places for passing data; and data that an ONNX file takes from outside of its folder.
IN_BINARY = re.compile(rb"(/(home|Users|root|tmp|mnt|scratch|private)/|[A-Z]:\\Users\\)[\w./-]{2,}")
ONNX_OUTSIDE = re.compile(rb"location\x12.(\.\./|/)[\w./-]+", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """A reason not to push a folder: the file, and what happened, why that cannot be and what to do."""

    file: str
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}. {self.why} {self.remedy}"


def content_problems(folder: Path, path: str, card_command: str) -> Iterator[Problem]:
    """What is wrong inside one file of a model folder; code is compared as a whole instead.

    card_command: what writes the card and record/, for the remedies.
    """
    name, suffix = PurePosixPath(path).name, PurePosixPath(path).suffix.lower()
    if suffix == ".safetensors":
        yield from _of_strings(path, list(_notes(folder / path)), card_command)
    elif suffix not in TEXT:
        yield from _of_bytes(folder / path, path)
    elif suffix != ".py":
        text = read_text(folder / path)
        strings = [text]
        if suffix == ".json":
            try:
                content = json.loads(text, object_pairs_hook=_once)
            except _Twice as twice:
                why = "Of the two, programs see the one or the other."
                yield Problem(path, f"It has the key {twice} twice in one place", why, "Save it again.")
                return
            except (ValueError, RecursionError):
                yield Problem(path, "It is not JSON", "Programs that read it would stop.", "Save it again.")
                return
            strings, keys = strings_of(content, name == "tokenizer.json")
            for key in sorted(keys & set(OF_THE_MACHINE)):
                why = "It says how a file was found on this machine, and other machines obey it."
                yield Problem(path, f"It has the key {key}", why, "Take the key out.")
            escaping = [s for s in strings if name in CHECKS_OF_PATHS and OUTSIDE.search(s)]
            if escaping:
                why = "Only this folder is uploaded."
                yield Problem(path, f"It names {escaping[0]}, outside of the folder", why, "Take the entry out.")
            strings += sorted(keys)
        if suffix in (".yaml", ".yml") and "!!python/" in text:
            why = "Loaders that are not safe run what it names."
            yield Problem(path, "It makes Python objects", why, "Write plain YAML.")
        yield from _secrets(path, [text, *strings])
        if name in VOCABULARIES or name == "tokenizer.json":
            yield from _of_bytes(folder / path, path)
        if name not in VOCABULARIES:
            yield from _paths(path, strings, card_command)


class _Twice(Exception):
    """A key that one object of JSON has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _Twice(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return found


def _of_strings(path: str, strings: list[str], card_command: str) -> Iterator[Problem]:
    yield from _secrets(path, strings)
    yield from _paths(path, strings, card_command)


def _secrets(path: str, strings: list[str]) -> Iterator[Problem]:
    if secret := next(filter(None, map(SECRETS.search, strings)), None):
        why = "Whoever reads it can act in its owner's name."
        remedy = "Remove it, and revoke it where it was made (https://huggingface.co/settings/tokens for the Hub's)."
        yield Problem(path, f"It holds what looks like a token or a key, {secret[0][:6]}...", why, remedy)


def _paths(path: str, strings: list[str], card_command: str) -> Iterator[Problem]:
    for string in strings:
        if found := ABSOLUTE.search(string) or WINDOWS_PATH.search(string):
            line = string[max(0, found.start() - 20) : found.end() + 20].strip().replace("\n", " ")
            remedy = "Take it out" + (
                f" ({card_command} writes the card and record/ without)." if path.startswith("record/") else "."
            )
            yield Problem(path, f"It holds a path of a machine: {line!r}", "Nobody else has that path.", remedy)
            return


def _of_bytes(file: Path, path: str) -> Iterator[Problem]:
    if not file.stat().st_size:
        return
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = IN_BINARY.search(content) or (path.lower().endswith(".onnx") and ONNX_OUTSIDE.search(content))
        told = found[0][:60].decode("utf-8", "replace") if found else ""
    if told:
        remedy = "Write the file again from a relative path, or without what names it."
        yield Problem(path, f"It holds a path of a machine: {told!r}", "Nobody else has that path.", remedy)


def _notes(file: Path) -> Iterator[str]:
    """The texts of a safetensors header: its metadata, keys and values."""
    try:
        with safe_open(file, framework="numpy") as weights:
            for pair in (weights.metadata() or {}).items():
                yield from pair
    except (SafetensorError, OSError):
        return  # said elsewhere


def strings_of(content: Any, is_tokenizer: bool) -> tuple[list[str], set[str]]:
    """All strings and keys of nested JSON; tokens and coded tables of a tokenizer are none of them."""
    strings, keys, rest = [], set(), [content]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            skipped = {"model", "added_tokens", "normalizer"} if is_tokenizer else set()
            keys |= value.keys()
            rest += [item for key, item in value.items() if key not in skipped]
            is_tokenizer = False
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, str):
            strings.append(value)
    return strings, keys


def read_json(file: Path) -> Any:
    """What a JSON file holds; None where it is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return None


def read_text(file: Path) -> str | None:
    """Text in UTF-8; None for anything else."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
