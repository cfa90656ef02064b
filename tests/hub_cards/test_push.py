"""Pushes to a Hub on loopback: what is sent, what is not, what is refused, and what an interruption leaves.

The check of the folder is the real one, except that it is not loaded in a new process, which test_folder_check.py and
test_from_the_hub.py do.
"""

import json
import socket
from unittest.mock import Mock

import huggingface_hub.constants
import pytest
from safetensors.torch import load_file

from hub_cards import folder_check, push
from hub_cards.card import write_card

REPO = "owner/model"
STATES: dict[str, str] = {}  # file -> state, as the last command listed them
# huggingface_hub's way of sending a file over HTTP, which Xet has replaced, is deprecated in the HTTP library
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def run(hub, capsys, monkeypatch):
    """Runs the command; the exit status, and what it printed."""
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    show_files = push.show_files

    def shown(files, console):
        STATES.clear()
        STATES.update({path: state for path, (_, state) in files.items()})
        show_files(files, console)

    monkeypatch.setattr(push, "show_files", shown)

    def run_push(folder, *arguments, repo=REPO):
        try:
            push.main(["--model", str(folder), "--repo", repo, *arguments])
            status = 0
        except SystemExit as stopped:
            status = stopped.code
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return status, printed.out + printed.err

    return run_push


def contents(folder):
    return {path: (folder / path).read_bytes() for path in folder_check.files_of(folder)[0]}


def test_create_and_push(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--message", "First")
    assert status == 0, printed
    assert hub.titles(REPO)[1:] == ["First"] and not hub.repos[REPO].private
    there = hub.files(REPO)
    assert there.pop(".gitattributes") and there == contents(folder)
    assert f'AutoModel.from_pretrained("{REPO}", revision="{hub.head(REPO)}", trust_remote_code=True)' in printed


def test_a_dry_run_lists_everything_and_changes_nothing(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--dry-run")
    assert status == 0 and hub.repos == {} and hub.writes() == []
    assert STATES == dict.fromkeys(contents(folder), "new")
    assert f"To upload: {len(contents(folder))} files" in printed and "apache-2.0" in printed


def test_a_dry_run_beside_what_the_hub_holds(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    hub.edit(REPO, {"notes.md": "theirs", "encoder.py": "old"})
    card = folder / "README.md"
    card.write_text(card.read_text().replace("license: apache-2.0", "license: mit"))
    before, requests = hub.head(REPO), len(hub.requests)
    status, printed = run(folder, "--dry_run")
    assert status == 0 and hub.head(REPO) == before
    assert not [request for request in hub.requests[requests:] if request in hub.writes()]
    expected = dict.fromkeys(contents(folder), "same") | dict.fromkeys(["encoder.py", "README.md"], "changed")
    assert STATES == expected | dict.fromkeys(["notes.md", ".gitattributes"], "only there (kept)")
    assert "license" in printed and "tags" not in printed


def test_a_second_push_sends_what_changed(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    requests = len(hub.requests)
    assert run(folder)[0] == 0
    assert len(hub.titles(REPO)) == 2 and not [r for r in hub.requests[requests:] if r in hub.writes()]
    (folder / "NOTICE").write_text("Made here.\n")
    requests = len(hub.requests)
    assert run(folder)[0] == 0 and hub.files(REPO)["NOTICE"] == b"Made here.\n"
    sent = [request for request in hub.requests[requests:] if request.method == "PUT" or "/commit/" in request.path]
    assert [request.method for request in sent] == ["POST"] and sent[0].size < 500  # NOTICE alone


@pytest.mark.parametrize("broken", ["large file", "commit", "Ctrl-C"])
def test_what_is_interrupted_goes_on_with_the_same_command(hub, run, fault, ready_folder, monkeypatch, broken):
    folder = ready_folder()
    with monkeypatch.context() as patch:
        if broken == "Ctrl-C":
            patch.setattr(push.HfApi, "create_commit", Mock(side_effect=KeyboardInterrupt))
        else:
            fault(*{"large file": ("PUT", "/storage/"), "commit": ("POST", "/commit/")}[broken], 403)
        assert run(folder)[0] == (130 if broken == "Ctrl-C" else 2)
    assert len(hub.titles(REPO)) == 1
    assert run(folder)[0] == 0 and len(hub.titles(REPO)) == 2 and hub.files(REPO).items() >= contents(folder).items()
    assert len(hub.stored()) == len(set(hub.stored()))  # none arrived twice


def test_a_push_in_between_is_noticed(hub, run, ready_folder, monkeypatch):
    folder = ready_folder()
    assert run(folder)[0] == 0
    (folder / "NOTICE").write_text("Made here.\n")
    monkeypatch.setattr(push, "show_plan", lambda *arguments: hub.edit(REPO, {"NOTICE": "Made there.\n"}))
    assert run(folder)[0] == 2
    assert hub.files(REPO)["NOTICE"] == b"Made there.\n"


def test_a_card_edited_on_the_hub_is_not_overwritten(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs})
    (folder / "NOTICE").write_text("Made here.\n")
    for arguments in ([], ["--dry-run"]):
        status, printed = run(folder, *arguments)
        assert status == 2 and "\n-A line of ours.\n" in printed and "--overwrite-card" in printed
    assert hub.files(REPO)["README.md"].decode() == theirs and "NOTICE" not in hub.files(REPO)
    assert run(folder, "--overwrite-card")[0] == 0
    assert hub.files(REPO)["README.md"] == (folder / "README.md").read_bytes()


def test_a_card_that_has_the_edits_or_was_written_anew_is_no_conflict(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs.replace("\n", "\r\n")})  # the Hub's editor
    (folder / "README.md").write_text(theirs)
    assert run(folder)[0] == 0
    hub.edit(REPO, {"README.md": ready_folder().joinpath("README.md").read_text()})
    write_card(folder, repo=REPO, license="mit", overwrite=True)
    assert run(folder)[0] == 0 and b"license: mit" in hub.files(REPO)["README.md"]


def test_what_a_former_push_left_is_removed(hub, run, ready_folder):
    """transformers would read the former weights, and the former scores are of those."""
    folder = ready_folder()
    former = contents(folder)
    shard = (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(shard), shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_card(folder, repo=REPO, license="apache-2.0", overwrite=True)
    index = json.loads(former.pop("provenance/record.json"))
    index["results"]["old.json"] = {"figures": []}
    former["provenance/record.json"] = json.dumps(index)
    old = {".eval_results/old.yaml": "[]", "provenance/results/old.json": "{}"}
    theirs = {"notes.md": "theirs", "model.pt": b"x", ".eval_results/theirs.yaml": "[]"}
    hub.create(REPO)
    hub.edit(REPO, former | old | theirs)
    status, printed = run(folder, "--dry-run")
    left = {path for path, state in STATES.items() if state == "left over (removed)"}
    assert status == 0 and left == {"model.safetensors", *old}
    assert run(folder)[0] == 0
    assert set(hub.files(REPO)) == {*contents(folder), *theirs, ".gitattributes"}


def test_private_repositories(hub, run, ready_folder):
    folder = ready_folder()
    assert "created, private" in run(folder, "--private", "--dry-run")[1]
    assert run(folder, "--private")[0] == 0 and hub.repos[REPO].private
    (folder / "NOTICE").write_text("Made here.\n")
    status, printed = run(folder)  # without --private: it stays so, and that is said
    assert status == 0 and "exists and stays private" in printed and hub.repos[REPO].private


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_public_repository_is_not_taken_for_a_private_one(hub, run, ready_folder, monkeypatch, meanwhile):
    if meanwhile:
        monkeypatch.setattr(push, "show_plan", lambda *arguments: hub.create(REPO))
    else:
        hub.create(REPO)
    assert run(ready_folder(), "--private")[0] == 2
    assert len(hub.titles(REPO)) == 1 and not hub.repos[REPO].private


def test_revisions(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--revision", "trial/1")  # into a new repository
    assert status == 0, printed
    assert set(hub.files(REPO)) == {".gitattributes"} and "model.safetensors" in hub.files(REPO, "trial/1")
    assert run(folder)[0] == 0 and "model.safetensors" in hub.files(REPO)
    (folder / "NOTICE").write_text("Made here.\n")
    assert run(folder, "--revision=next", "--dry-run")[0] == 0 and "next" not in hub.repos[REPO].branches
    assert run(folder, "--revision", "next")[0] == 0
    assert "NOTICE" in hub.files(REPO, "next") and "NOTICE" not in hub.files(REPO)
    (folder / "NOTICE").unlink()
    assert run(folder, "--revision", "same")[0] == 0 and hub.head(REPO, "same") == hub.head(REPO)


@pytest.mark.parametrize(
    "token, repo, said",
    [
        ("nonsense", REPO, "401"),
        ("reader", REPO, "role"),
        ("stranger", REPO, "owner"),
        ("writer", "library/model", "library"),  # an organization whose files the owner may only read
    ],
)
def test_who_may_not_push(hub, run, ready_folder, monkeypatch, token, repo, said):
    monkeypatch.setenv("HF_TOKEN", token)
    status, printed = run(ready_folder(repo=repo), repo=repo)
    assert status == 2 and said in printed and hub.repos == {}


def test_an_organization(hub, run, ready_folder):
    assert run(ready_folder(repo="team/model"), repo="team/model")[0] == 0


@pytest.mark.parametrize("lacking, said", [("token", "hf auth login"), ("network", ""), ("mode", "HF_HUB_OFFLINE")])
def test_without_token_or_network_a_dry_run_lists_the_files(hub, run, ready_folder, monkeypatch, lacking, said):
    folder = ready_folder()
    if lacking == "token":
        monkeypatch.delenv("HF_TOKEN")
    elif lacking == "network":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    else:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    status, printed = run(folder, "--dry-run")
    assert status == 0 and STATES == dict.fromkeys(contents(folder), "not compared")
    (line,) = [line for line in printed.splitlines() if line.startswith("Not known: ")]
    assert REPO in line and said in line
    status, printed = run(folder)
    assert status == 2 and said in printed and hub.writes() == []


def test_a_card_that_the_hub_refuses_creates_nothing(hub, run, fault, ready_folder):
    fault("POST", "/api/validate-yaml", 400)
    assert run(ready_folder())[0] == 2 and hub.repos == {}


def test_a_faulty_folder_reaches_no_hub(hub, run, ready_folder, tmp_path):
    folder = ready_folder()
    (folder / "extra.pkl").write_bytes(b"x")
    url = f"https://huggingface.co/{REPO}"
    faulty = ((folder, REPO, "- extra.pkl: "), (tmp_path, REPO, "- model.safetensors: "))
    for model, repo, said in (*faulty, (tmp_path / "no", REPO, "no folder"), (tmp_path, url, "--repo is ")):
        status, printed = run(model, repo=repo)
        assert status == 2 and said in printed
    assert hub.requests == []


@pytest.mark.parametrize("other", ["owner/model-large", "co-owner/model", "owner/model.v2"])
def test_a_card_for_another_repository(hub, run, ready_folder, other):
    status, printed = run(ready_folder(repo=other))
    assert status == 2 and "- README.md: " in printed and "--repo owner/model" in printed
