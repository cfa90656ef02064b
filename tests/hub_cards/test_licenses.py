"""Licenses of data sets, from their cards on this disk and on the Hub."""

import pytest

from hub_cards.licenses import data_licenses, hub_id


def find(*paths, hub_root=None, named=None):
    return data_licenses([{"path": str(path), "config": "en"} for path in paths], hub_root, named)


def put_card(folder, metadata):
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf-8")


def test_cards_on_this_disk_are_read_first(tmp_path):
    put_card(tmp_path / "owner" / "one", "license: cc-by-nc-4.0")
    put_card(tmp_path / "owner" / "several", "license: [cc-by-4.0, mit]")
    put_card(tmp_path / "owner" / "its-own", "license: other\nlicense_name: news-license\nlicense_link: LICENSE")
    put_card(tmp_path / "local" / "silent", "configs: []")
    put_card(tmp_path / "local" / "broken", "license: [mit")
    (tmp_path / "local" / "bare").mkdir()
    names = "owner/one owner/several owner/its-own local/silent local/broken local/bare".split()
    hub = "https://huggingface.co/datasets/owner/"
    nothing = {"id": None, "name": None, "url": None}
    assert find(*names, hub_root=str(tmp_path)) == {
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
    corpus = tmp_path / "corpus"
    folder, file = find(corpus, tmp_path / "news.txt", corpus, named={str(corpus): "mit"}).values()
    assert (folder["id"], folder["url"]) == ("apache-2.0", None)
    assert (file["id"], file["note"]) == (None, "a local file, without a card")


def test_the_hub_is_asked_for_the_others(hub):
    hub.create("owner/stated")
    hub.edit("owner/stated", {"README.md": "---\nlicense: cc-by-sa-3.0\n---\n"})
    hub.create("owner/silent")
    found = find("owner/stated", "owner/silent", "owner/nowhere", "local/mirrored")
    assert {path: (license["id"], license["note"]) for path, license in found.items()} == {
        "owner/stated": ("cc-by-sa-3.0", None),
        "owner/silent": (None, "it has no card"),
        "owner/nowhere": (None, "not found on the Hub"),
        "local/mirrored": (None, "a local file, without a card"),
    }


@pytest.mark.parametrize(("what", "requests"), [("drop", 1), (500, 2)])
def test_a_hub_that_breaks_off_is_not_asked_again(hub, fault, what, requests):
    fault("GET", "/api/datasets/owner/first", what)
    hub.create("owner/second")
    hub.edit("owner/second", {"README.md": "---\nlicense: mit\n---\n"})
    first, second = find("owner/first", "owner/second").values()
    assert not first["id"] and not first["note"] and (second["id"] == "mit") == (requests == 2)
    assert len([request for request in hub.requests if "/api/datasets/" in request.path]) == requests


def test_offline_nothing_is_guessed():
    url = "https://huggingface.co/datasets/google/xtreme"
    assert find("google/xtreme")["google/xtreme"] == {"id": None, "name": None, "url": url, "note": None}
    given = find("google/xtreme", "news.txt", named={"google/xtreme": "other", "text.txt": "mit"})
    assert given["google/xtreme"] == {"id": "other", "name": None, "url": url, "note": "named in the recipe"}
    assert given.keys() == {"google/xtreme", "news.txt"}


def test_which_paths_are_on_the_hub():
    assert hub_id("google/xtreme")
    assert not any(map(hub_id, ("local/bible", "runs/minilm", "/data/bible", "news.txt", "a/b/c", "../x/y")))
