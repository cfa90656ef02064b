"""What a checkpoint's files held when they were written, and whether they still do."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zoo_core.provenance import write_json

CHECKSUMS = "checksums.json"
THREADS = 4  # hashing lets go of the interpreter; weights and optimizer are two files


def write_checksums(folder: Path) -> None:
    """Writes `checksums.json`, {path in the folder: sha256}, over every file: right after they were written, from
    memory."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(THREADS) as pool:
        sums = dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_sha256, files), strict=True))
    write_json(folder / CHECKSUMS, sums)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that `write_checksums` has seen, naming the file; None where nothing is."""
    try:
        sums = dict(json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")))
        files = [folder / name for name in sums]
    except (OSError, ValueError, TypeError) as error:
        return f"{CHECKSUMS} cannot be read ({error})"
    if "progress.json" not in sums:
        return f"{CHECKSUMS} does not list what a checkpoint has"
    if missing := [name for name, file in zip(sums, files, strict=True) if not file.is_file()]:
        return f"{missing[0]} is missing"
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(_sha256, files))
    except OSError as error:
        return f"a file cannot be read ({error})"
    changed = [name for (name, before), now in zip(sums.items(), found, strict=True) if before != now]
    return f"{', '.join(changed)} does not hold what was written there" if changed else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
