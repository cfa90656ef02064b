"""What a push would change: the files and the card of a model folder beside those that the repository holds."""

import difflib
import hashlib
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import sha
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from hub_cards.card import as_written
from hub_cards.folder_check import files_of, plural
from hub_cards.record import INDEX, OURS

CARD = "README.md"
NEW, CHANGED, SAME, KEPT, LEFT_OVER = "new", "changed", "same", "only there", "left over"
STYLES = {NEW: "green", CHANGED: "yellow", SAME: "dim", KEPT: "cyan", LEFT_OVER: "red"}
FATES = {KEPT: "only there (kept)", LEFT_OVER: "left over (removed)"}
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")  # names by which transformers finds them
LONGEST_VALUE = 60  # characters of a metadata value that are shown


@dataclass(frozen=True)
class File:
    """A file here or there: its size in bytes where it would be taken from, and whether it is new, changed, ..."""

    path: str
    size: int
    state: str


@dataclass(frozen=True)
class Plan:
    """What a push of a folder to a repository would do; nothing has been done yet.

    head: the commit that it was compared with; None where the repository is not there
    branch_exists: whether `revision` is there; it would begin at main's head
    diff: from the card on the Hub to the one here, where that was edited there; empty where nothing would be lost
    """

    repo: str
    revision: str
    head: str | None
    is_private: bool | None
    branch_exists: bool
    files: list[File]
    left_out: list[str]
    metadata: list[tuple[str, str, str]] = field(default_factory=list)
    diff: str = ""

    @property
    def to_send(self) -> list[File]:
        """The files that a commit would hold."""
        return [file for file in self.files if file.state in (NEW, CHANGED)]

    @property
    def to_remove(self) -> list[File]:
        """The files that a commit would take away."""
        return [file for file in self.files if file.state == LEFT_OVER]

    @property
    def is_done(self) -> bool:
        """Whether the branch holds the folder as it is."""
        return not self.to_send and not self.to_remove


def make_plan(api: HfApi, folder: Path, repo: str, revision: str) -> Plan:
    """Compares the folder with a branch of the repository, or with main where there is no such branch yet.

    Reads only. Raises what huggingface_hub raises where the Hub does not answer, and ValueError for a revision that
    cannot be pushed to.
    """
    kept, left_out = files_of(folder)
    try:
        info = api.model_info(repo)
    except RepositoryNotFoundError:
        files = [File(path, (folder / path).stat().st_size, NEW) for path in kept]
        metadata = _metadata_rows("", _read(folder / CARD))
        return Plan(repo, revision, None, None, revision == "main", files, left_out, metadata)
    branch_exists = True
    try:
        head = api.model_info(repo, revision=revision).sha
        _refuse_what_is_no_branch(api, repo, revision)
    except RevisionNotFoundError:
        head, branch_exists = info.sha, False
    tree = api.list_repo_tree(repo, recursive=True, revision=head)
    there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    files = [_compare(folder, path, there.get(path)) for path in kept]
    only_there = there.keys() - set(kept)
    left_over = _left_over(api, repo, head, only_there, INDEX in there)
    files += [File(path, there[path].size, LEFT_OVER if path in left_over else KEPT) for path in only_there]
    theirs = _remote_text(api, repo, CARD, head) if CARD in there else ""
    ours = _read(folder / CARD)
    diff = "" if not theirs or theirs == ours or as_written(theirs) else _diff(theirs, ours)
    files.sort(key=lambda file: file.path)
    metadata = _metadata_rows(theirs, ours)
    return Plan(repo, revision, head, bool(info.private), branch_exists, files, left_out, metadata, diff)


def _refuse_what_is_no_branch(api: HfApi, repo: str, revision: str) -> None:
    if revision == "main" or revision.startswith("refs/"):
        return
    if revision not in {branch.name for branch in api.list_repo_refs(repo).branches}:
        raise ValueError(
            f"--revision {revision} is a tag or a commit of {repo}. A push adds a commit to a branch. Name a branch; "
            "one that is not there is made."
        )


def _compare(folder: Path, path: str, there: RepoFile | None) -> File:
    """A file of the folder beside the repository's: by git's name of its content, or by sha256 of a large one."""
    file = folder / path
    size = file.stat().st_size
    if there is None:
        return File(path, size, NEW)
    if there.size != size:
        return File(path, size, CHANGED)
    if there.lfs is not None:
        is_same = sha256_of(file) == there.lfs.sha256
    else:
        is_same = sha.git_hash(file.read_bytes()) == there.blob_id
    return File(path, size, SAME if is_same else CHANGED)


def sha256_of(file: Path) -> str:
    """Of its content, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of each file of the folder that would go to the Hub, by path."""
    files = ((path, folder / path) for path in files_of(folder)[0])
    return {path: sha256_of(file) for path, file in files if file.is_file() and not file.is_symlink()}


def _left_over(api: HfApi, repo: str, revision: str, only_there: set[str], has_record: bool) -> set[str]:
    """Of the files that are only there, those that would belie the folder: a former record's, and former weights.

    transformers reads model.safetensors before any shards, and a record with a file too many is refused by all.
    """
    listed = {INDEX}
    if has_record:
        index = _json(_remote_text(api, repo, INDEX, revision))
        files = index.get("files") if isinstance(index, dict) else None
        listed |= {path for path in files if OURS.fullmatch(path)} if isinstance(files, dict) else set()
    return {path for path in only_there if path in listed or WEIGHTS.fullmatch(path)}


def _remote_text(api: HfApi, repo: str, path: str, revision: str) -> str:
    with tempfile.TemporaryDirectory(prefix="hub_cards_") as folder:
        return _read(Path(api.hf_hub_download(repo, path, revision=revision, local_dir=folder)))


def _read(file: Path) -> str:
    """The text of a card; git may have turned its line ends."""
    return file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _diff(theirs: str, ours: str) -> str:
    lines = difflib.unified_diff(
        theirs.splitlines(), ours.splitlines(), f"{CARD} on the Hub", f"{CARD} here", lineterm=""
    )
    return "\n".join(lines)


def _metadata_rows(theirs: str, ours: str) -> list[tuple[str, str, str]]:
    """(key, value there, value here) of the cards' metadata where the two differ; empty values where there is none."""
    there, here = _metadata(theirs), _metadata(ours)
    keys = [key for key in {**here, **there} if there.get(key) != here.get(key)]
    return [(key, _shown(key, there.get(key)), _shown(key, here.get(key))) for key in keys]


def _metadata(card: str) -> dict[str, Any]:
    found = REGEX_YAML_BLOCK.search(card)
    try:
        metadata = yaml.safe_load(found[2]) if found else {}
    except yaml.YAMLError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "model-index":
        return f"{sum(len(model.get('results', [])) for model in value)} results"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def show_plan(plan: Plan, private: bool, console: Console) -> None:
    """Prints what would happen: repository, files, metadata of the card, bytes to send."""
    if plan.head is None:
        console.print(f"{plan.repo} is not there: it would be created, {'private' if private else 'public'}.")
    else:
        visibility = "private" if plan.is_private else "public"
        console.print(f"{plan.repo} is there, {visibility}, and stays so. Compared with commit {plan.head[:12]}.")
    if not plan.branch_exists:
        console.print(f"The branch {plan.revision} is not there: it would be created from main.")
    table = Table("file", "size", "state")
    table.columns[0].overflow = "fold"
    table.columns[1].justify = "right"
    for file in plan.files:
        style = STYLES[file.state]
        table.add_row(escape(file.path), decimal(file.size), f"[{style}]{FATES.get(file.state, file.state)}[/{style}]")
    console.print(table)
    if plan.left_out:
        console.print(f"Left out: {escape(', '.join(plan.left_out))}")
    if plan.metadata:
        table = Table("metadata", "on the Hub", "here", title="What differs in the card's metadata")
        for row in plan.metadata:
            table.add_row(*map(escape, row))
        console.print(table)
    sizes = [file.size for file in plan.to_send]
    if sizes:
        console.print(f"To upload: {plural(len(sizes), 'file')}, {decimal(sum(sizes))} ({sum(sizes):,} bytes).")
    if plan.diff:
        console.print(f"\n{CARD} was edited on the Hub. What a push would change in it:")
        console.print(plan.diff, markup=False, highlight=False, soft_wrap=True)
