"""Checks a model folder, and uploads it to the Hub in one commit.

    python -m hub_cards.push --model runs/xlm_align-smoke/model --repo me/xlm-align --dry-run
    python -m hub_cards.push --model runs/xlm_align-smoke/model --repo me/xlm-align --private

The check compares the folder's code, if it has any, with modeling/. If a file differs, the command stops; otherwise it
loads the model and runs its code in a fresh process.

Files that the repository already has are not sent. Files that only the repository has are kept, except for the weights
and the record of an earlier push. If the card was edited on the Hub, the command shows the edits and stops;
--overwrite-card replaces them. After an interruption, run the same command again: it does not send large files twice.
--dry-run checks the folder and lists the files to send, also without a token or network.
"""

import difflib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import sha
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from hub_cards.card import as_written
from hub_cards.folder_check import Problem, check_folder, files_of, refusal
from hub_cards.record import INDEX, files_of_results, parse_index
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.tables import HUB_ID

CARD = "README.md"
NEW, CHANGED, SAME, KEPT, REMOVED = "new", "changed", "same", "only there (kept)", "left over (removed)"
UNKNOWN = "not compared"
STYLES = {NEW: "green", CHANGED: "yellow", SAME: "dim", KEPT: "cyan", REMOVED: "red", UNKNOWN: "dim"}
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")  # names that transformers looks for
LONGEST_VALUE = 60  # characters of a metadata value that are shown


@dataclass(frozen=True)
class Plan:
    """The changes that a push would make."""

    head: str | None  # the commit that the folder was compared with; None where there is no repository
    is_private: bool
    branch_exists: bool  # else it would begin at main's head
    files: dict[str, tuple[int, str]]  # path -> size in bytes and state
    card: str  # the card on the Hub; empty where there is none

    def paths(self, *states: str) -> list[str]:
        """Returns the files in one of these states."""
        return [path for path, (_, state) in self.files.items() if state in states]


def push(
    model_dir: str | os.PathLike,
    repo: str,
    dry_run: bool = False,
    private: bool = False,
    revision: str = "main",
    message: str | None = None,
    overwrite_card: bool = False,
) -> str | None:
    """Checks a model folder, prints the changes to a repository of the Hub, and commits them.

    The check loads the folder in a fresh process, and runs the folder's code in it.

    Args:
        model_dir: model folder whose card (README.md) names `repo`.
        repo: Hub id, owner/name; the repository is created if it does not exist.
        dry_run: changes nothing, and lists each file with its size in bytes and whether it differs.
        private: makes a new repository private.
        revision: branch to commit to.
        message: message of the commit.
        overwrite_card: replaces a card that was edited on the Hub.

    Returns the commit with the folder; None for a dry run.

    Raises ValueError for a folder with faults, for errors of the Hub, and for a card that was edited on the Hub.

    Example:
        >>> push("runs/short/model", "owner/name", dry_run=True)

    Source: `huggingface_hub.HfApi.create_commit`.
    """
    console, folder = Console(highlight=False, force_jupyter=False), Path(model_dir)
    if not HUB_ID.fullmatch(repo):
        raise ValueError(f"--repo is {repo!r}. Give owner/name.")
    with console.status(f"checking {escape(str(folder))}: a fresh process loads it and runs its code"):
        problems = check_folder(folder)
    card = "" if problems else _read(folder / CARD)
    if not problems and not re.search(rf"(?<![\w.-]){re.escape(repo)}(?![\w-]|\.\w)", card):
        problems = [Problem(CARD, f"it does not name {repo}. Run python -m hub_cards.card --model DIR --repo {repo}")]
    if problems:
        raise ValueError(refusal(folder, problems))
    additions = {path: CommitOperationAdd(path, folder / path) for path in files_of(folder)[0]}
    try:
        api = HfApi()
        _check_rights(api, repo)
        ModelCard(card).validate()
        plan = make_plan(api, additions, repo, revision)
        show_plan(plan, repo, revision, private, card, console)
        if private and plan.head and not plan.is_private:
            raise ValueError(f"{repo} is public. Make it private on the Hub, or leave --private out.")
        if _is_edited(plan.card, card) and not overwrite_card:
            raise ValueError(f"{CARD} of {repo} was edited on the Hub. Copy the edits here, or add --overwrite-card.")
        if dry_run:
            console.print("Dry run: nothing was changed.")
            return None
        commit = _send(api, additions, plan, repo, revision, private, message)
    except (HTTPError, OSError, RuntimeError) as error:  # RuntimeError of a large file that did not arrive
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        if dry_run and not isinstance(error, HfHubHTTPError):  # no answer, or nobody who asks
            show_files({path: (addition.upload_info.size, UNKNOWN) for path, addition in additions.items()}, console)
            unknown = f"whether {repo} exists, which of its files differ, and whether you may write to it"
            console.print(f"Not known: {unknown}. {reason}", markup=False, soft_wrap=True)
            return None
        raise ValueError(f"{repo}: {reason} Fix this, then run the same command again.") from error
    console.print(f"{api.endpoint}/{repo} has the folder at commit {commit}.", soft_wrap=True)
    load = f'AutoModel.from_pretrained("{repo}", revision="{commit}", trust_remote_code=True)'
    console.print(load, soft_wrap=True, markup=False)
    return commit


def _check_rights(api: HfApi, repo: str) -> None:
    """Raises ValueError if the Hub says that the token may not write under the owner of `repo`."""
    who, owner = api.whoami(), repo.split("/")[0]
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise ValueError(f"The token of {who['name']} has the role read. Log in with a token of the role write.")
    if owner not in {who["name"], *(organization["name"] for organization in who.get("orgs", []))}:
        raise ValueError(f"{who['name']} has no right to write under {owner}. Name another owner in --repo.")


def make_plan(api: HfApi, additions: dict[str, CommitOperationAdd], repo: str, revision: str) -> Plan:
    """Compares the files with a branch of the repository, or with main if the branch does not exist."""
    try:
        info, branch_exists = api.model_info(repo, revision=revision), True
    except RepositoryNotFoundError:
        new = {path: (addition.upload_info.size, NEW) for path, addition in additions.items()}
        return Plan(None, False, revision == "main", new, "")
    except RevisionNotFoundError:
        info, branch_exists = api.model_info(repo), False
    tree = api.list_repo_tree(repo, recursive=True, revision=info.sha)
    there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    files = {
        path: (addition.upload_info.size, _state(addition, there.get(path))) for path, addition in additions.items()
    }

    def text_of(path: str) -> str:
        return _read(Path(api.hf_hub_download(repo, path, revision=info.sha)))

    # transformers reads model.safetensors before any shards
    outdated = {path for path in there if WEIGHTS.fullmatch(path)}
    if INDEX in there:
        outdated |= {INDEX, *files_of_results(parse_index(text_of(INDEX)) or {"results": {}})}
    for path in there.keys() - additions.keys():
        files[path] = (there[path].size, REMOVED if path in outdated else KEPT)
    card = text_of(CARD) if CARD in there else ""
    return Plan(info.sha, bool(info.private), branch_exists, dict(sorted(files.items())), card)


def _state(addition: CommitOperationAdd, there: RepoFile | None) -> str:
    """A file compared with the repository's: by git's name of its content, or by sha256 of a large one."""
    if there is None:
        return NEW
    if there.lfs is not None:
        return SAME if addition.upload_info.sha256.hex() == there.lfs.sha256 else CHANGED
    with addition.as_file() as stream:
        return SAME if sha.git_hash(stream.read()) == there.blob_id else CHANGED


def _read(file: Path) -> str:
    """The text of a file; git may have turned its line ends."""
    return file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def _is_edited(theirs: str, ours: str) -> bool:
    """Whether a push would lose what somebody wrote into the card on the Hub."""
    return bool(theirs) and theirs != ours and not as_written(theirs)


def show_plan(plan: Plan, repo: str, revision: str, private: bool, card: str, console: Console) -> None:
    """Prints the changes: repository, files, metadata of the card, bytes to send."""
    if plan.head is None:
        console.print(f"{repo} does not exist. It would be created, {'private' if private else 'public'}.")
    else:
        visibility = "private" if plan.is_private else "public"
        console.print(f"{repo} exists and stays {visibility}. The folder is compared with commit {plan.head[:12]}.")
    if not plan.branch_exists:
        console.print(f"The branch {revision} does not exist. It would be created from main.")
    show_files(plan.files, console)
    there, here = _metadata(plan.card), _metadata(card)
    table = Table("metadata", "on the Hub", "here")
    for key in {**here, **there}:
        if there.get(key) != here.get(key):
            table.add_row(key, *(escape(json.dumps(data.get(key))[:LONGEST_VALUE]) for data in (there, here)))
    if table.row_count:
        console.print(table)
    if _is_edited(plan.card, card):
        lines = difflib.unified_diff(plan.card.splitlines(), card.splitlines(), "on the Hub", "here", lineterm="")
        console.print("\n".join(lines), markup=False, soft_wrap=True)


def show_files(files: dict[str, tuple[int, str]], console: Console) -> None:
    """Prints the files with size and state, and the number and size of the files to send."""
    table = Table("file", "size", "state")
    table.columns[0].overflow = "fold"
    for path, (size, state) in files.items():
        table.add_row(escape(path), decimal(size), f"[{STYLES[state]}]{state}[/{STYLES[state]}]")
    console.print(table)
    sizes = [size for size, state in files.values() if state in (NEW, CHANGED, UNKNOWN)]
    at_most = "at most " if UNKNOWN in {state for _, state in files.values()} else ""
    console.print(f"To upload: {at_most}{len(sizes)} files, {decimal(sum(sizes))}.")


def _metadata(card: str) -> dict[str, Any]:
    """The metadata of a card, as JSON has it."""
    metadata = ModelCard(card, ignore_metadata_errors=True).data.to_dict() if card else {}
    return json.loads(json.dumps(metadata, default=str))


def _send(
    api: HfApi,
    additions: dict[str, CommitOperationAdd],
    plan: Plan,
    repo: str,
    revision: str,
    private: bool,
    message: str | None,
) -> str:
    """Creates what is missing, uploads and commits; returns the commit. Somebody else's push in between is refused."""
    if plan.head is None:
        api.create_repo(repo, private=private)
    if not plan.branch_exists:
        api.create_branch(repo, branch=revision)
    head = plan.head or api.model_info(repo, revision=revision).sha
    operations = [additions[path] for path in plan.paths(NEW, CHANGED)]
    operations += [CommitOperationDelete(path) for path in plan.paths(REMOVED)]
    if not operations:
        return head
    message = message or "Upload with hub_cards.push"
    return api.create_commit(repo, operations, commit_message=message, revision=revision, parent_commit=head).oid


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m hub_cards.push", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, with its card")
    parser.add_argument("--repo", required=True, metavar="ID", help="Hub id of the repository (owner/name)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the folder, compare it and list the files, without changes on the Hub",
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--revision",
        default="main",
        metavar="BRANCH",
        help="branch to commit to; it is created from main if it does not exist (default: main)",
    )
    parser.add_argument("--message", metavar="TEXT", help="message of the commit")
    parser.add_argument("--overwrite-card", action="store_true", help="replace a card that was edited on the Hub")
    given = vars(parser.parse_args(argv))
    with user_errors("run the same command again to continue"):
        push(given.pop("model"), **given)


if __name__ == "__main__":
    sys.exit(main())
