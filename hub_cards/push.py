"""Checks a model folder, and uploads it to the Hub in one commit.

    python -m crosslingual_zoo.hub_cards.push --model runs/xlm_align-smoke/model --repo me/xlm-align --dry-run
    python -m crosslingual_zoo.hub_cards.push --model runs/xlm_align-smoke/model --repo me/xlm-align --private

The check compares the folder's code, if it has any, with modeling/. If a file differs, the command stops; otherwise a
fresh process loads the model and runs the folder's code. Then the command lists the files, and sends those that the
repository does not have. Files that only the repository has are kept, except for weights that transformers would load
in place of these. --dry-run stops after the list, and needs no token or network.
"""

import os
import re
import sys
from pathlib import Path

from crosslingual_zoo.hub_cards.card import as_written
from crosslingual_zoo.hub_cards.folder_check import check_folder, files_of
from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors
from crosslingual_zoo.zoo_core.provenance import is_adapter

CARD = "README.md"
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")  # names that transformers looks for


def push(
    model_dir: str | os.PathLike, repo: str, dry_run: bool = False, private: bool = False, overwrite_card: bool = False
) -> str | None:
    """Checks a model folder, prints its files, and commits them to a repository of the Hub.

    The check loads the folder in a fresh process, and runs the folder's code in it.

    Args:
        model_dir: model folder whose card (README.md) names `repo`.
        repo: Hub id, owner/name; the repository is created if it does not exist.
        dry_run: sends nothing.
        private: makes a new repository private.
        overwrite_card: replaces a card that was edited on the Hub.

    Returns the commit with the folder; None for a dry run.

    Raises ValueError for a folder with faults, for errors of the Hub, and for a card that was edited on the Hub.

    Example:
        >>> push("runs/short/model", "owner/name", dry_run=True)

    Source: `huggingface_hub.HfApi.create_commit`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import validate_repo_id

    from crosslingual_zoo.hub_cards.record import has_code

    folder = Path(model_dir)
    validate_repo_id(repo)
    if repo.count("/") != 1:
        raise ValueError(f"--repo is {repo!r}. Give owner/name.")
    is_model = not is_adapter(folder)
    if is_model:
        what = "loads it and runs its code" if has_code(folder) else "loads it"
        print(f"Checking {folder}: a fresh process {what}.", flush=True)
    if problems := check_folder(folder):
        lines = [f"{problem.file}: {problem.what}" for problem in problems]
        raise ValueError("\n- ".join([f"{folder} cannot be pushed:", *lines]))
    card = _text(folder / CARD)
    if not re.search(rf"(?<![\w.-]){re.escape(repo)}(?![\w-]|\.\w)", card):
        raise ValueError(f"{folder / CARD} does not name {repo}. Write it with zoo-card --repo {repo}")
    files = files_of(folder)
    total = 0
    for path in files:
        size = (folder / path).stat().st_size
        total += size
        print(f"{size:>14,}  {path}")
    print(f"{total:>14,}  bytes in {len(files)} files")
    if dry_run:
        print("Dry run: all checks passed, and nothing was sent.")
        return None
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        info = api.model_info(repo)
        if private and not info.private:
            raise ValueError(f"{repo} is public. Make it private on the Hub, or leave --private out.")
        hub_files = api.list_repo_files(repo, revision=info.sha)
        if CARD in hub_files and not overwrite_card:
            hub_card = _text(Path(api.hf_hub_download(repo, CARD, revision=info.sha)))
            if hub_card != card and not as_written(hub_card):
                raise ValueError(
                    f"{CARD} of {repo} was edited on the Hub. Copy the edits here, or add --overwrite-card."
                )
        additions = [CommitOperationAdd(path, folder / path) for path in files]
        outdated = [path for path in hub_files if path not in files and WEIGHTS.fullmatch(path)]
        deletions = [CommitOperationDelete(path) for path in outdated]
        message = "Upload with hub_cards.push"
        commit = api.create_commit(repo, [*additions, *deletions], commit_message=message, parent_commit=info.sha)
    except (HTTPError, OSError, RuntimeError) as error:  # RuntimeError of a large file that did not arrive
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise ValueError(f"{repo}: {reason} Fix this, then run the same command again.") from error
    print(f"{api.endpoint}/{repo} has the folder at commit {commit.oid}.")
    if not is_model:
        print(f"word-align --adapter {repo}@{commit.oid} --model ...")
        return commit.oid
    trust = ", trust_remote_code=True" if has_code(folder) else ""
    print(f'AutoModel.from_pretrained("{repo}", revision="{commit.oid}"{trust})')
    return commit.oid


def _text(file: Path) -> str:
    """The text of a file; git may have turned its line ends."""
    return file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m crosslingual_zoo.hub_cards.push", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, with its card")
    parser.add_argument("--repo", required=True, metavar="ID", help="Hub id of the repository (owner/name)")
    parser.add_argument("--dry-run", action="store_true", help="check the folder and list its files, without the Hub")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--overwrite-card", action="store_true", help="replace a card that was edited on the Hub")
    options = vars(parser.parse_args(argv))
    with user_errors("run the same command again to continue"):
        push(options.pop("model"), **options)


if __name__ == "__main__":
    sys.exit(main())
