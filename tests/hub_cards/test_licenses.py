"""Licenses of data sets, from their cards on this disk and on the Hub, and the license ids of weights."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from hub_cards.licenses import check_license, data_licenses, hub_id

ASK = "import json, sys\nfrom dataclasses import asdict\nfrom hub_cards.licenses import data_licenses\n"
ASK += "found = data_licenses(json.load(sys.stdin))\n"
ASK += "print(json.dumps({path: asdict(license) for path, license in found.items()}))"


def tables(*paths):
    return [{"path": path, "config": "en"} for path in paths]


def put_card(folder, metadata):
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf-8")


@pytest.fixture
def ask(hub_server):
    """What a fresh process, which may ask the loopback server, finds out of data sets."""

    def found(*paths):
        ran = subprocess.run(
            [sys.executable, "-c", ASK],
            input=json.dumps(tables(*paths)),
            env=hub_server.environment("reader"),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return found


def test_cards_on_this_disk_are_read_first(tmp_path):
    put_card(tmp_path / "owner" / "one", "license: cc-by-nc-4.0")
    put_card(tmp_path / "owner" / "several", "license: [cc-by-4.0, mit]")
    put_card(tmp_path / "owner" / "its-own", "license: other\nlicense_name: news-license\nlicense_link: LICENSE")
    put_card(tmp_path / "local" / "silent", "configs: []")
    put_card(tmp_path / "local" / "broken", "license: [mit")
    (tmp_path / "local" / "bare").mkdir()
    names = "owner/one owner/several owner/its-own local/silent local/broken local/bare".split()
    found = {path: asdict(license) for path, license in data_licenses(tables(*names), str(tmp_path)).items()}
    hub = "https://huggingface.co/datasets/owner/"
    nothing = {"id": None, "name": None, "url": None}
    assert found == {
        "owner/one": {"id": "cc-by-nc-4.0", "name": None, "url": f"{hub}one", "note": None},
        "owner/several": {"id": "cc-by-4.0, mit", "name": None, "url": f"{hub}several", "note": None},
        "owner/its-own": {"id": "other", "name": "news-license", "url": f"{hub}its-own", "note": None},
        "local/silent": {**nothing, "note": "its card names no license"},
        "local/broken": {**nothing, "note": "its card cannot be read"},
        "local/bare": {**nothing, "note": "it has no card"},
    }


def test_folders_and_files_of_ones_own(tmp_path):
    put_card(tmp_path / "corpus", "license: apache-2.0")
    (tmp_path / "news.txt").write_text("a\n")
    paths = [str(tmp_path / "corpus"), str(tmp_path / "news.txt")]
    folder, file = data_licenses(tables(*paths, *paths)).values()
    assert (folder.id, folder.url) == ("apache-2.0", None)
    assert (file.id, file.note) == (None, "a local file, without a card")


def test_the_hub_is_asked_for_the_others(ask, hub_server):
    hub_server.create("owner/stated", kind="dataset")
    hub_server.edit("owner/stated", {"README.md": "---\nlicense: cc-by-sa-3.0\n---\n"}, kind="dataset")
    hub_server.create("owner/silent", kind="dataset")
    found = ask("owner/stated", "owner/silent", "owner/nowhere", "local/mirrored")
    assert {path: (license["id"], license["note"]) for path, license in found.items()} == {
        "owner/stated": ("cc-by-sa-3.0", None),
        "owner/silent": (None, "it has no card"),
        "owner/nowhere": (None, "not found on the Hub"),
        "local/mirrored": (None, "a local file, without a card"),
    }
    assert found["owner/nowhere"]["url"] is None


def test_a_hub_that_breaks_off_is_not_asked_again(ask, hub_server, hub_server_module):
    hub_server.faults.append(hub_server_module.Fault("GET", "/api/datasets/", "drop"))
    hub_server.create("owner/second", kind="dataset")
    found = ask("owner/first", "owner/second")
    assert [license["note"] for license in found.values()] == ["not looked up"] * 2
    assert len([request for request in hub_server.requests if "/api/datasets/" in request.path]) == 1


def test_a_hub_that_answers_an_error_is_asked_for_the_next(ask, hub_server, hub_server_module):
    hub_server.faults.append(hub_server_module.Fault("GET", "/api/datasets/owner/first", 500))
    hub_server.create("owner/second", kind="dataset")
    hub_server.edit("owner/second", {"README.md": "---\nlicense: mit\n---\n"}, kind="dataset")
    found = ask("owner/first", "owner/second")
    assert (found["owner/first"]["note"], found["owner/second"]["id"]) == ("not looked up", "mit")


def test_offline_nothing_is_guessed():
    license = data_licenses(tables("google/xtreme"))["google/xtreme"]
    assert (license.id, license.note) == (None, "not looked up")
    assert license.url == "https://huggingface.co/datasets/google/xtreme"


def test_which_paths_are_on_the_hub():
    assert hub_id("google/xtreme")
    assert not any(map(hub_id, ("local/bible", "runs/minilm", "/data/bible", "news.txt", "a/b/c", "../x/y")))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("apache-2",), "apache-2.0"),  # the nearest
        (("CC-BY-4.0",), "cc-by-4.0"),
        (("other", "my-license"), "--license-link"),
        (("other", None, "LICENSE"), "--license-name"),
        (("mit", "my-license"), "--license-name"),
    ],
)
def test_licenses_that_the_hub_would_refuse(arguments, field):
    with pytest.raises(ValueError, match=field):
        check_license(*arguments)
    check_license("apache-2.0")
    check_license("other", "my-license", "LICENSE")
