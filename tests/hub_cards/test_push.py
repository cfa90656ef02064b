"""Pushes to a Hub on loopback: what is sent, what is not, what is refused, and what happens when the line breaks.

The check of the folder is the real one but for loading it in a fresh process, which test_folder_check.py and
test_from_the_hub.py do.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from hub_cards import folder_check, push_plan
from hub_cards.card import as_written, write_card
from hub_cards.push import main

REPO = "owner/model"
# huggingface_hub's way of sending a file over HTTP, which Xet has replaced, is deprecated in the HTTP library
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(hub_server, monkeypatch):
    """The server, as the Hub of this process; the token is that of the owner."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub_server.endpoint)
    files = hub_server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "writer")
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("COLUMNS", "100")
    return hub_server


@pytest.fixture
def fault(hub, hub_server_module):
    return lambda *arguments, **options: hub.faults.append(hub_server_module.Fault(*arguments, **options))


@pytest.fixture
def run(hub, capsys):
    """Runs the command; the exit status, and what it printed."""

    def run_push(folder, *arguments, repo=REPO):
        try:
            main(["--model", str(folder), "--repo", repo, *arguments])
            status = 0
        except SystemExit as stopped:
            status = stopped.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run_push


@pytest.fixture
def split_folder(ready_folder):
    """A folder whose weights are in two files."""
    folder = ready_folder()
    tensors = load_file(folder / "model.safetensors")
    weight_map = {name: f"model-{1 + name.startswith('lm_head')}.safetensors" for name in tensors}
    for shard in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    shutil.rmtree(folder / "record")
    for path in ("model.safetensors", "README.md"):
        (folder / path).unlink()
    write_card(folder, repo=REPO, licence="apache-2.0")
    return folder


def contents(folder):
    return {path: (folder / path).read_bytes() for path in folder_check.files_of(folder)[0]}


def rows(printed):
    """file -> state, of the printed table."""
    return dict(re.findall(r"│ (\S+) +│ +[\d,.]+ \w+ │ (.+?) +│", printed))


def test_create_and_push(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder)
    assert status == 0, printed
    assert hub.titles(REPO)[1:] == [f"Upload {len(contents(folder))} files with hub_cards.push"]
    there = hub.files(REPO)
    assert there.pop(".gitattributes") and there == contents(folder)
    assert not hub.repos["model", REPO].private
    head = hub.head(REPO)
    assert f"{hub.endpoint}/{REPO}, commit {head}" in printed
    assert f'AutoModel.from_pretrained("{REPO}", revision="{head}", trust_remote_code=True)' in printed


def test_a_dry_run_lists_everything_and_changes_nothing(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--dry-run")
    assert status == 0 and hub.repos == {} and hub.writes() == []
    assert "is not there: it would be created, public" in printed and "Dry run: nothing was changed." in printed
    assert rows(printed) == dict.fromkeys(contents(folder), "new")
    total = sum(map(len, contents(folder).values()))
    assert f"To upload: {len(contents(folder))} files" in printed and f"({total:,} bytes)" in printed
    assert "license" in printed and "apache-2.0" in printed


def test_a_dry_run_beside_what_the_hub_holds(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    hub.edit(REPO, {"notes.md": "theirs", "encoder.py": "old"})
    (folder / ".DS_Store").write_bytes(b"x")
    card = folder / "README.md"
    card.write_text(card.read_text().replace("license: apache-2.0", "license: mit"))
    before, requests = hub.head(REPO), len(hub.requests)
    status, printed = run(folder, "--dry_run")
    states = rows(printed)
    assert status == 0 and hub.head(REPO) == before
    assert not [request for request in hub.requests[requests:] if request in hub.writes()]
    assert states["notes.md"] == states[".gitattributes"] == "only there (kept)"
    assert states["encoder.py"] == states["README.md"] == "changed"
    assert {state for path, state in states.items() if path not in ("notes.md", ".gitattributes")} == {
        "changed",
        "same",
    }
    assert re.search(r"│ license +│ apache-2.0 +│ mit +│", printed) and "│ tags" not in printed
    assert "Left out: .DS_Store" in printed and "To upload: 2 files" in printed
    assert f"Compared with commit {before[:12]}" in printed


def test_a_second_push_sends_what_changed(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    requests = len(hub.requests)
    status, printed = run(folder)
    assert status == 0 and f"Nothing to do: {REPO} holds all of it at commit {hub.head(REPO)}" in printed
    assert len(hub.titles(REPO)) == 2 and not [r for r in hub.requests[requests:] if r in hub.writes()]
    (folder / "NOTICE").write_text("Made here.\n")
    requests = len(hub.requests)
    status, printed = run(folder, "--message", "Add a notice")
    assert status == 0 and hub.titles(REPO)[2:] == ["Add a notice"]
    assert hub.files(REPO)["NOTICE"] == b"Made here.\n"
    sent = [request for request in hub.requests[requests:] if request.method == "PUT" or "/commit/" in request.path]
    assert [request.method for request in sent] == ["POST"] and sent[0].size < 500  # NOTICE alone


def test_a_line_that_breaks_for_a_moment(hub, run, fault, ready_folder):
    folder = ready_folder()
    fault("PUT", "/storage/", "drop")
    assert run(folder)[0] == 0
    assert len(hub.titles(REPO)) == 2
    broken, *whole = [request for request in hub.requests if request.method == "PUT"]
    assert broken.status is None and 0 < broken.size < whole[0].size


@pytest.mark.slow
def test_a_line_that_breaks_for_good_and_the_same_command_again(hub, run, fault, split_folder):
    folder = split_folder
    fault("PUT", "/storage/", "drop", after=1, times=1000)
    status, printed = run(folder)
    assert status == 2 and "error: The line to the Hub broke" in printed and "Traceback" not in printed
    assert len(hub.titles(REPO)) == 1 and len(hub.stored()) == 1
    assert re.search(r"model-\d\.safetensors \([\d.]+ kB\) have arrived and are not sent again", printed)
    assert "Run the same command again: it goes on from there." in printed
    hub.faults.clear()
    requests = len(hub.requests)
    assert run(folder)[0] == 0
    assert hub.files(REPO).keys() >= contents(folder).keys() and len(hub.titles(REPO)) == 2
    assert len(hub.stored()) == len(set(hub.stored()))  # none arrived twice
    assert hub.stored()[0] not in str(hub.requests[requests:])


@pytest.mark.slow
def test_what_is_interrupted_goes_on(hub, run, fault, split_folder, hub_server, tmp_path):
    """Ctrl-C in a process of its own, when one of two large files has arrived and the other one does not go on."""
    fault("PUT", "/storage/", "hang", after=1)
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"  # ignored where tests run unattended
        "from hub_cards import folder_check, push; folder_check._load = lambda folder: []; push.main()"
    )
    command = [sys.executable, "-c", program, "--model", str(split_folder), "--repo", REPO]
    environment = hub_server.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        stop = threading.Timer(60, running.kill)  # whatever goes wrong, the test ends
        stop.start()
        while running.poll() is None and sum(request.method == "PUT" for request in hub.requests) < 2:
            threading.Event().wait(0.01)
        running.send_signal(signal.SIGINT)
        errors = running.communicate()[1]
        stop.cancel()
    assert running.returncode == 130, errors
    assert "interrupted" in errors and "Run the same command again" in errors and "Traceback" not in errors
    assert len(hub.titles(REPO)) == 1 and len(hub.stored()) == 1
    status, printed = run(split_folder)
    assert status == 0, printed
    assert len(hub.titles(REPO)) == 2 and hub.files(REPO).keys() >= contents(split_folder).keys()
    assert len(hub.stored()) == len(set(hub.stored()))  # none arrived twice


@pytest.mark.parametrize("what", [503, "drop", "lose"])
def test_a_commit_whose_answer_is_lost_is_made_once(hub, run, fault, ready_folder, what):
    folder = ready_folder()
    fault("POST", "/commit/", what)
    status, printed = run(folder)
    assert status == 0, printed
    assert "The line broke" in printed and len(hub.titles(REPO)) == 2
    assert hub.head(REPO) in printed
    assert len(hub.stored()) == len(set(hub.stored()))


def test_a_push_in_between_is_noticed(hub, run, ready_folder, monkeypatch):
    folder = ready_folder()
    assert run(folder)[0] == 0
    (folder / "NOTICE").write_text("Made here.\n")

    def show_and_edit(*arguments):
        hub.edit(REPO, {"NOTICE": "Made there.\n"})

    monkeypatch.setattr(push_plan, "show_plan", show_and_edit)
    status, printed = run(folder)
    assert status == 2 and "error: Somebody else pushed to owner/model in the meantime" in printed
    assert hub.files(REPO)["NOTICE"] == b"Made there.\n"


@pytest.mark.parametrize("path", ["NOTICE", "model.safetensors", "more.json"])
def test_what_changes_after_the_check_is_not_sent(hub, run, ready_folder, monkeypatch, path):
    folder = ready_folder()
    (folder / "NOTICE").write_text("Made here.\n")
    show_plan = push_plan.show_plan

    def show_and_write(*arguments):
        show_plan(*arguments)
        (folder / path).write_bytes(b"[]")

    # once between plan and commit, once between check and plan
    for name, put_in in (("show_plan", show_and_write), ("make_plan", None)):
        if put_in is None:
            make_plan = push_plan.make_plan

            def put_in(*arguments, make_plan=make_plan):
                (folder / path).write_bytes(b"{}")
                return make_plan(*arguments)

        if path == "more.json" and name == "show_plan":
            continue  # a file that comes after the plan is not in it
        with monkeypatch.context() as patch:
            patch.setattr(push_plan, name, put_in)
            status, printed = run(folder)
        assert status == 2 and f"{path} was changed after it was checked" in printed
        assert len(hub.titles(REPO)) == 1
        if path == "model.safetensors":
            return  # it is no model any more


def test_a_card_edited_on_the_hub_is_not_overwritten(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs})
    (folder / "NOTICE").write_text("Made here.\n")
    for arguments in ([], ["--dry-run"]):
        status, printed = run(folder, *arguments)
        assert status == 2 and "\n-A line of ours.\n" in printed and "--overwrite-card" in printed
        assert "error: README.md of owner/model was edited on the Hub" in printed
    assert hub.files(REPO)["README.md"].decode() == theirs and "NOTICE" not in hub.files(REPO)
    status, printed = run(folder, "--overwrite-card")
    assert status == 0 and "\n-A line of ours.\n" in printed
    assert hub.files(REPO)["README.md"] == (folder / "README.md").read_bytes()


def test_edits_that_are_taken_over_are_no_conflict(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs.replace("\n", "\r\n")})  # the Hub's editor
    (folder / "README.md").write_text(theirs)
    assert not as_written(theirs)
    (folder / "NOTICE").write_text("Made here.\n")
    assert run(folder)[0] == 0 and "NOTICE" in hub.files(REPO)


def test_a_card_that_was_written_anew_replaces_the_one_before(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    write_card(folder, repo=REPO, licence="mit")
    status, printed = run(folder)
    assert status == 0 and "edited" not in printed
    assert b"license: mit" in hub.files(REPO)["README.md"]


def test_what_a_former_push_left_is_removed(hub, run, split_folder, ready_folder):
    """transformers would read the former weights, and whoever checks the record would find a file too many."""
    folder, former = split_folder, ready_folder()
    index = json.loads((former / "record/record.json").read_text())
    index["files"] |= {".eval_results/old.yaml": "0", "record/results/old.json": "0", "notes.md": "0"}
    (former / "record/record.json").write_text(json.dumps(index))
    hub.create(REPO)
    further = {".eval_results/old.yaml": "[]", "record/results/old.json": "{}", ".eval_results/theirs.yaml": "[]"}
    hub.edit(REPO, contents(former) | further | {"notes.md": "theirs", "model.pt": b"x"})
    status, printed = run(folder, "--dry-run")
    left = {"model.safetensors", ".eval_results/old.yaml", "record/results/old.json"}
    assert status == 0 and left == {path for path, state in rows(printed).items() if state == "left over (removed)"}
    status, printed = run(folder)
    assert status == 0, printed
    kept = {"notes.md", "model.pt", ".eval_results/theirs.yaml", ".gitattributes"}
    assert set(hub.files(REPO)) == set(contents(folder)) | kept
    assert hub.titles(REPO)[-1].endswith(", remove 3 files with hub_cards.push")
    assert "Nothing to do" in run(folder)[1]


def test_a_repository_that_somebody_creates_meanwhile(hub, run, ready_folder, monkeypatch):
    monkeypatch.setattr(push_plan, "show_plan", lambda *arguments: hub.create(REPO))
    status, printed = run(ready_folder(), "--private")
    assert status == 2 and "error: owner/model is public, and --private was given" in printed
    assert len(hub.titles(REPO)) == 1


def test_private_repositories(hub, run, ready_folder, monkeypatch):
    folder = ready_folder()
    assert "would be created, private" in run(folder, "--private", "--dry-run")[1]
    assert run(folder, "--private")[0] == 0
    assert hub.repos["model", REPO].private
    (folder / "NOTICE").write_text("Made here.\n")
    status, printed = run(folder)  # without --private: it stays so, and that is said
    assert status == 0 and "is there, private, and stays so" in printed and hub.repos["model", REPO].private
    monkeypatch.setenv("HF_TOKEN", "stranger")
    with pytest.raises(RepositoryNotFoundError):
        HfApi().model_info(REPO)


def test_a_public_repository_is_not_made_private_in_silence(hub, run, ready_folder):
    folder = ready_folder()
    hub.create(REPO)
    status, printed = run(folder, "--private")
    assert status == 2 and "error: owner/model is public, and --private was given" in printed
    assert len(hub.titles(REPO)) == 1 and not hub.repos["model", REPO].private


@pytest.mark.slow
def test_revisions(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--revision", "trial/1")  # into a new repository
    assert status == 0, printed
    assert set(hub.files(REPO)) == {".gitattributes"} and "model.safetensors" in hub.files(REPO, "trial/1")
    assert run(folder)[0] == 0 and "model.safetensors" in hub.files(REPO)
    (folder / "NOTICE").write_text("Made here.\n")
    status, printed = run(folder, "--revision=next", "--dry-run")
    assert status == 0 and "The branch next is not there: it would be created from main" in printed
    assert "next" not in hub.repos["model", REPO].branches
    assert run(folder, "--revision", "next")[0] == 0
    assert "NOTICE" in hub.files(REPO, "next") and "NOTICE" not in hub.files(REPO)
    (folder / "NOTICE").unlink()
    assert run(folder, "--revision", "same")[0] == 0 and hub.head(REPO, "same") == hub.head(REPO)
    status, printed = run(folder, "--revision", hub.head(REPO))
    assert status == 2 and "is a tag or a commit of owner/model" in printed


@pytest.mark.parametrize("kind, told", [("dataset", "a data set"), ("space", "a Space")])
def test_a_repository_of_another_kind(hub, run, ready_folder, kind, told):
    hub.create(REPO, kind=kind)
    for arguments in ([], ["--dry-run"]):
        status, printed = run(ready_folder(), *arguments)
        assert status == 2 and f"error: owner/model is {told} on the Hub, and no model" in printed
    assert ("model", REPO) not in hub.repos


@pytest.mark.parametrize(
    "token, repo, said",
    [
        (None, REPO, "There is no token of the Hub"),
        ("nonsense", REPO, "The Hub does not know this token"),
        ("reader", REPO, "The token of owner may only read"),
        ("stranger", REPO, "stranger has no right to write under owner: the token's owner is not a member of it"),
        ("writer", "library/model", "owner has no right to write under library: the token's owner reads only there"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_who_may_not_push(hub, run, ready_folder, monkeypatch, token, repo, said, arguments):
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    status, printed = run(ready_folder(repo=repo), *arguments, repo=repo)
    assert status == 2 and f"error: {said}" in printed and "Traceback" not in printed
    assert hub.repos == {} and hub.writes() == []


def test_an_organization(hub, run, ready_folder):
    assert run(ready_folder(repo="team/model"), repo="team/model")[0] == 0


def test_a_right_that_only_the_hub_knows_of(hub, run, fault, ready_folder):
    fault("POST", "/api/repos/create", 403)
    status, printed = run(ready_folder())
    assert status == 2 and "error: The Hub does not let this token write to owner/model (status 403)" in printed


def test_no_network(hub, run, ready_folder, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    status, printed = run(ready_folder(), "--dry-run")
    assert status == 2 and f"error: http://127.0.0.1:{port} cannot be reached" in printed
    assert "Look at the network" in printed and "Traceback" not in printed


def test_offline_by_the_users_own_setting(hub, run, ready_folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    status, printed = run(ready_folder(), "--dry-run")
    assert status == 2 and "error: HF_HUB_OFFLINE is set" in printed


def test_a_hub_in_trouble(hub, run, fault, ready_folder):
    fault("GET", "/api/models/", 500)
    status, printed = run(ready_folder())
    assert status == 2 and "error: The Hub has trouble (status 500)" in printed and hub.repos == {}


def test_metadata_that_the_hub_refuses(hub, run, fault, ready_folder):
    fault("POST", "/api/validate-yaml", 400)
    status, printed = run(ready_folder(), "--dry-run")
    assert status == 2 and "error: The Hub does not take the metadata of" in printed


def test_a_faulty_folder_reaches_no_hub(hub, run, ready_folder):
    folder = ready_folder()
    (folder / "extra.pkl").write_bytes(b"x")
    (folder / "more.py").write_text("import os\n")
    status, printed = run(folder)
    assert status == 2 and "cannot be pushed, for 2 reasons:\n- extra.pkl: It is a pickle" in printed
    assert hub.requests == []


@pytest.mark.parametrize("other", ["owner/other", "owner/model-large", "co-owner/model", "owner/model.v2"])
def test_a_card_for_another_repository(hub, run, ready_folder, other):
    status, printed = run(ready_folder(repo=other))
    assert status == 2 and "It does not name owner/model" in printed and "--repo owner/model" in printed


@pytest.mark.parametrize("repo", ["model", "https://huggingface.co/owner/model", "owner/a b", "owner/model/main"])
def test_an_id_that_is_none(hub, run, ready_folder, repo):
    status, printed = run(ready_folder(), repo=repo)
    assert status == 2 and "which is no id of the Hub" in printed and "Give owner/name." in printed


def test_a_folder_without_weights(hub, run, tmp_path):
    status, printed = run(tmp_path)
    assert status == 2 and "cannot be pushed, for 2 reasons" in printed and "no weights as safetensors" in printed
    status, printed = run(tmp_path / "nowhere")
    assert status == 2 and "error: There is no folder" in printed
