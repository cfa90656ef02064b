"""Uploads a model folder to the Hub: rehearsed first if you like, looked through before, in one commit.

    python -m hub_cards.push --model runs/xlm_align/model --repo me/xlm-align --dry-run
    python -m hub_cards.push --model runs/xlm_align/model --repo me/xlm-align --private

The folder is checked, and loaded by a fresh process, before anything is sent, and only what was checked is sent. Files
that the repository has already are not sent; files that are only there stay, but for the weights and the record of a
former push. A card that somebody edited on the Hub is shown, and not overwritten without --overwrite-card. When the
line breaks, or Ctrl-C stops it, the same command goes on: large files that have arrived stay there.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape

from zoo_core.tables import HUB_ID

ATTEMPTS = 3  # of upload and commit; huggingface_hub has tried each upload several times by then
WAIT_SECONDS = 5  # before the second attempt; twice as long before the third
ONE_BY_ONE = 2**20  # bytes from which a file is sent alone, so that what has arrived can be told
LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN, with a token of https://huggingface.co/settings/tokens."
GOES_ON = "Run the same command again: it goes on from there."


class LineBroke(Exception):
    """The Hub could not be reached, or stopped answering: worth another try."""


def push(
    model_dir: str | os.PathLike,
    repo: str,
    dry_run: bool = False,
    private: bool = False,
    revision: str = "main",
    message: str | None = None,
    overwrite_card: bool = False,
    console: Console | None = None,
) -> str | None:
    """Checks a model folder, says what would change in `repo` (owner/name), and commits it without `dry_run`.

    Returns the commit that now holds the folder; None of a dry run.

    Raises ValueError for an id that is none, a folder that `check_folder` finds fault with, a Hub that cannot be
    reached or refuses (no token, no right to write, a data set of that name), and a card edited on the Hub.
    """
    from hub_cards.push_plan import checksums, make_plan, show_plan

    console = console or Console(highlight=False)
    folder = Path(model_dir)
    if not HUB_ID.fullmatch(repo):
        raise ValueError(f"--repo is {repo!r}, which is no id of the Hub. It has an owner and a name. Give owner/name.")
    checked = checksums(folder)
    _refuse_faults(folder, repo, console)
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        _check_rights(api, repo)
        _check_metadata(api, folder)
        plan = make_plan(api, folder, repo, revision)
        if plan.head is None:
            _refuse_other_kinds(api, repo)
        show_plan(plan, private, console)
        _refuse_to_publish(plan, private)
        if plan.diff and not overwrite_card:
            raise ValueError(
                f"README.md of {repo} was edited on the Hub, see above. A push would undo that work. Take the edits "
                "over into README.md here and push again, or add --overwrite-card to replace it."
            )
        if plan.is_done and plan.branch_exists:
            console.print(f"Nothing to do: {repo} holds all of it at commit {plan.head}.", soft_wrap=True)
            return None if dry_run else plan.head
        if dry_run:
            console.print("Dry run: nothing was changed.")
            return None
        commit = _send(api, folder, plan, checked, private, message, console)
    except Exception as error:
        if (explained := _explained(error, repo)) is error:
            raise
        raise explained from error
    console.print(f"Pushed to {api.endpoint}/{repo}, commit {commit}.", soft_wrap=True)
    console.print(
        f'AutoModel.from_pretrained("{repo}", revision="{commit}", trust_remote_code=True)',
        soft_wrap=True,
        markup=False,
    )
    return commit


def _refuse_faults(folder: Path, repo: str, console: Console) -> None:
    from hub_cards.folder_check import Problem, check_folder, refusal

    with console.status(f"checking {escape(str(folder))} and loading it in a fresh process"):
        problems = check_folder(folder)
    card = folder / "README.md"
    named = rf"(?<![\w.-]){re.escape(repo)}(?![\w-]|\.\w)"
    if not problems and not re.search(named, card.read_text(encoding="utf-8")):
        remedy = f"Write it with python -m hub_cards.card --model DIR --repo {repo}."
        problems = [Problem("README.md", f"It does not name {repo}", "Its examples would load something else.", remedy)]
    if problems:
        raise ValueError(refusal(folder, problems))
    console.print(f"{folder} is whole, and a fresh process loads it.", markup=False, soft_wrap=True)


def _check_rights(api, repo: str) -> None:
    """Who the token belongs to, and whether they may write under the owner of `repo`, as far as the Hub tells."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        who = api.whoami()
    except LocalTokenNotFoundError:
        raise ValueError(f"There is no token of the Hub. A push has to say who pushes. {LOG_IN}") from None
    except HfHubHTTPError as error:
        if error.response.status_code == 401:
            raise ValueError(f"The Hub does not know this token. It may be expired or revoked. {LOG_IN}") from None
        raise
    owner, role = repo.split("/")[0], who.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise ValueError(
            f"The token of {who['name']} may only read. A push to {repo} writes. Make a token with the role write at "
            "https://huggingface.co/settings/tokens, and log in with it."
        )
    organizations = {organization["name"]: organization.get("roleInOrg") for organization in who.get("orgs", [])}
    if owner != who["name"] and organizations.get(owner, "read" if owner not in organizations else None) == "read":
        told = "reads only there" if owner in organizations else "is not a member of it"
        raise ValueError(
            f"{who['name']} has no right to write under {owner}: the token's owner {told}. The Hub would refuse "
            f"{repo}. Push to {who['name']}/{repo.split('/')[1]}, or ask {owner} for the right to write."
        )


def _check_metadata(api, folder: Path) -> None:
    """Asks the Hub whether it takes the card's metadata, as a commit does at its very end.

    `ModelCard.validate` asks huggingface.co in older releases of huggingface_hub, whatever HF_ENDPOINT says.
    """
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    card = folder / "README.md"
    asked = {"repoType": "model", "content": card.read_text(encoding="utf-8")}
    answer = get_session().post(f"{api.endpoint}/api/validate-yaml", json=asked, headers=build_hf_headers())
    if answer.status_code == 400:
        raise ValueError(
            f"The Hub does not take the metadata of {card}: {' '.join(answer.text.split())[:300]}. It would refuse the "
            "commit. Write the card anew with python -m hub_cards.card, or correct it."
        )
    hf_raise_for_status(answer)


def _refuse_other_kinds(api, repo: str) -> None:
    for kind, told in (("dataset", "a data set"), ("space", "a Space")):
        if api.repo_exists(repo, repo_type=kind):
            raise ValueError(
                f"{repo} is {told} on the Hub, and no model. A model beside it under the same name would be taken for "
                "it. Give the model another name."
            )


def _refuse_to_publish(plan, private: bool) -> None:
    if private and plan.is_private is False:
        raise ValueError(_is_public(plan.repo))


def _is_public(repo: str) -> str:
    return (
        f"{repo} is public, and --private was given. A push does not change who can see a repository. Make it private "
        "in its settings on the Hub first, or leave --private out."
    )


def _send(
    api, folder: Path, plan, checked: dict[str, str], private: bool, message: str | None, console: Console
) -> str:
    """Creates what is missing, uploads and commits; tries again where the line breaks. Returns the commit.

    checked: path -> sha256 of the files that were looked through
    """
    from hub_cards.push_plan import make_plan

    if plan.head is None:
        _reached(lambda: api.create_repo(plan.repo, private=private, exist_ok=True))
        console.print(f"Created {plan.repo}, {'private' if private else 'public'}.")
    if not plan.branch_exists or (plan.head is None and plan.revision != "main"):
        _reached(lambda: api.create_branch(plan.repo, branch=plan.revision, exist_ok=True))
    info = _reached(lambda: api.model_info(plan.repo, revision=plan.revision))
    if private and not info.private:  # somebody has created it since
        raise ValueError(_is_public(plan.repo))
    head = plan.head or info.sha
    if plan.is_done:
        return head  # a new branch with main's files
    arrived: dict[str, int] = {}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _commit(api, folder, plan, checked, head, message, arrived)
        except LineBroke as error:
            kept = _told(arrived)
            if attempt == ATTEMPTS:
                raise ValueError(
                    f"The line to the Hub broke: {error}. Nothing was committed; {kept}. {GOES_ON}"
                ) from error
            wait = WAIT_SECONDS * attempt
            console.print(
                f"The line broke: {error}. {kept.capitalize()}. Trying again in {wait} s.", markup=False, soft_wrap=True
            )
            time.sleep(wait)
        now = make_plan(api, folder, plan.repo, plan.revision)  # was the commit made, and only the answer lost?
        if now.is_done:
            return now.head
        if now.head != head:
            raise ValueError(_somebody_else(plan.repo))
    raise AssertionError("the loop returns or raises")


def _commit(
    api, folder: Path, plan, checked: dict[str, str], parent: str, message: str | None, arrived: dict[str, int]
) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    from hub_cards.folder_check import plural

    operations = []
    for file in sorted(plan.to_send, key=lambda file: file.size):
        is_large = file.size >= ONE_BY_ONE or file.path.endswith(".safetensors")
        # what is small is read once: what is compared is what is sent
        content = folder / file.path if is_large else (folder / file.path).read_bytes()
        operation = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=content)
        if operation.upload_info.sha256.hex() != checked.get(file.path):
            raise ValueError(
                f"{folder / file.path} was changed after it was checked. Only what was looked through may go out; "
                "nothing was committed. Wait until nothing writes there any more, and push again."
            )
        operations.append(operation)
        if is_large:
            upload = {"additions": [operation], "revision": plan.revision, "free_memory": False}
            _reached(lambda upload=upload: api.preupload_lfs_files(plan.repo, **upload))
            arrived[file.path] = file.size
    what = f"Upload {plural(len(operations), 'file')}"
    if plan.to_remove:
        what += f", remove {plural(len(plan.to_remove), 'file')}"
        operations += [CommitOperationDelete(path_in_repo=file.path) for file in plan.to_remove]
    done = _reached(
        lambda: api.create_commit(
            plan.repo,
            operations,
            commit_message=message or f"{what} with hub_cards.push",
            revision=plan.revision,
            parent_commit=parent,
        )
    )
    return done.oid


def _reached(call):
    """What a call to the Hub gives. Raises LineBroke where the Hub cannot be reached, or has trouble of its own."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return call()
    except OfflineModeIsEnabled:
        raise
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, HfHubHTTPError):
                status = cause.response.status_code
                if status >= 500 or status == 429:
                    raise LineBroke(f"the Hub answers with status {status}") from error
                raise cause from None
            if _is_of_the_line(cause):
                raise LineBroke(_one_line(cause)) from error
        if isinstance(error, RuntimeError):  # what Xet raises, its network included
            raise LineBroke(_one_line(error)) from error
        raise


def _causes(error: BaseException | None):
    while error is not None:
        yield error
        error = error.__cause__


def _is_of_the_line(error: BaseException) -> bool:
    """Errors of the HTTP library, which is not the same in every huggingface_hub, and of the system's sockets."""
    named = {cls.__name__ for cls in type(error).__mro__}
    return "TransportError" in named or isinstance(error, (ConnectionError, TimeoutError))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _told(arrived: dict[str, int]) -> str:
    if not arrived:
        return "no large file has arrived yet"
    return f"{', '.join(arrived)} ({decimal(sum(arrived.values()))}) have arrived and are not sent again"


def _somebody_else(repo: str) -> str:
    return (
        f"Somebody else pushed to {repo} in the meantime. This push was compared with what was there before, and would "
        "undo theirs unseen. Look at it with --dry-run, and push again."
    )


def _explained(error: Exception, repo: str) -> Exception:
    """The ValueError that tells the user of an error of huggingface_hub; errors of other kinds as they are."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return ValueError(
            "HF_HUB_OFFLINE is set: huggingface_hub may not use the network. A push, and its dry run, compare with "
            "what the Hub holds. Unset HF_HUB_OFFLINE."
        )
    if isinstance(error, HfHubHTTPError):
        status, told = error.response.status_code, _one_line(error)
        if status == 412:
            return ValueError(_somebody_else(repo))
        if status in (401, 403):
            return ValueError(
                f"The Hub does not let this token write to {repo} (status {status}). Its owner lacks the right, or the "
                "token's scope leaves this repository out. Ask for the right, or make a token with the role write at "
                "https://huggingface.co/settings/tokens."
            )
        if status >= 500 or status == 429:
            return ValueError(f"The Hub has trouble (status {status}): {told}. Nothing was committed. {GOES_ON}")
        return ValueError(f"The Hub refused (status {status}): {told}. So nothing was committed. Change what it names.")
    if isinstance(error, ValueError):
        return error  # one of ours, or what the library says of wrong arguments
    if isinstance(error, LineBroke) or any(_is_of_the_line(cause) for cause in _causes(error)):
        return ValueError(
            f"{constants.ENDPOINT} cannot be reached: {_one_line(error)}. A push compares with what the Hub holds, and "
            f"sends what differs. Look at the network (proxy, firewall, HF_ENDPOINT). {GOES_ON}"
        )
    if isinstance(error, OSError):
        return ValueError(f"The upload failed: {_one_line(error)}. Nothing was committed. See to that. {GOES_ON}")
    return error


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hub_cards.push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, with its card")
    parser.add_argument("--repo", required=True, metavar="ID", help="id on the Hub (owner/name)")
    parser.add_argument("--dry-run", "--dry_run", action="store_true", help="check, compare and list; change nothing")
    parser.add_argument("--private", action="store_true", help="create the repository private; existing ones stay")
    parser.add_argument(
        "--revision", default="main", metavar="BRANCH", help="branch; made from main if it is not there"
    )
    parser.add_argument("--message", metavar="TEXT", help="of the commit")
    parser.add_argument(
        "--overwrite-card", "--overwrite_card", action="store_true", help="replace a card that was edited on the Hub"
    )
    given = vars(parser.parse_args(argv))
    try:
        push(given.pop("model"), **given)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(
            130,
            f"\n{parser.prog}: interrupted. What was not committed is not on the Hub's pages; large files that have "
            "arrived stay there. Run the same command again: it compares anew, and sends what is missing.\n",
        )


if __name__ == "__main__":
    sys.exit(main())
