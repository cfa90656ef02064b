"""The Space from outside: command line, the folder that is uploaded, and the running page."""

import ast
import http.client
import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import metadata_load

SPACE = Path(__file__).parents[2] / "hub_cards" / "space"
PAIR = ("The children are reading.", "Die Kinder lesen ein Buch.")


@pytest.mark.parametrize(
    "arguments, environment, models, only_listed",
    [
        ("", {}, [], False),
        ("--model a --model b", {"ZOO_MODELS": "c"}, ["a", "b"], False),
        ("", {"ZOO_MODELS": "a/b, c/d,"}, ["a/b", "c/d"], False),
        ("", {"ZOO_MODELS": "a", "ZOO_ONLY_LISTED": "1"}, ["a"], True),
        ("--model a --host 0.0.0.0", {}, ["a"], True),
        ("--model a", {"GRADIO_SERVER_NAME": "0.0.0.0"}, ["a"], True),
        ("--model a --host 0.0.0.0 --no-only-listed", {}, ["a"], False),
        ("--model a --host ::1", {}, ["a"], False),  # loopback, as the page's own address
        ("--model a", {"SPACE_ID": "x/y"}, ["a"], True),
        ("--model a", {"SPACE_ID": "x/y", "ZOO_ONLY_LISTED": "0"}, ["a"], False),
        ("", {"SPACE_ID": "x/y"}, metadata_load(SPACE / "README.md")["models"], True),
    ],
)
def test_models_and_trust_by_flag_environment_and_place(
    space, monkeypatch, arguments, environment, models, only_listed
):
    for name in ("SPACE_ID", "ZOO_MODELS", "ZOO_ONLY_LISTED", "ZOO_TRUST_REMOTE_CODE", "GRADIO_SERVER_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flags = space.app.make_parser().parse_args(arguments.split())
    space.app.complete(flags)
    assert (flags.model, flags.only_listed) == (models, only_listed)


@pytest.mark.parametrize(
    "arguments, variable, said",
    [
        (["--only-listed"], "", "no model is named"),
        (["--model", "a"], "perhaps", "ZOO_ONLY_LISTED is 'perhaps'"),
        (["--port", "many"], "", "invalid int value"),
    ],
)
def test_a_wrong_command_line_ends_with_a_reason(space, capsys, monkeypatch, arguments, variable, said):
    monkeypatch.delenv("ZOO_MODELS", raising=False)
    monkeypatch.setenv("ZOO_ONLY_LISTED", variable)
    with pytest.raises(SystemExit) as ended:
        space.app.main(arguments)
    assert ended.value.code == 2 and re.search(said, capsys.readouterr().err)


# ---- the folder


def test_the_folder_needs_nothing_else():
    """The standard library, each other, modeling/, and what requirements.txt or the Space itself installs."""
    own = {path.stem for path in SPACE.glob("*.py")}
    requirements = dict(
        re.match(r"([\w-]+)(.*)", line).groups()
        for line in (SPACE / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    installed = {*requirements, "modeling", "gradio", "starlette", "huggingface_hub"}  # with gradio, with transformers
    for path in SPACE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] in own | installed | set(sys.stdlib_module_names), f"{path.name}: {name}"
    project = tomllib.loads((SPACE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = [requirement.replace(" ", "") for requirement in project["dependencies"]]
    for name, version in requirements.items():
        assert f"{name}{version}" in pinned


def test_its_sentences_are_parallel(space):
    languages = space.samples.LANGUAGES.keys()
    groups = space.samples.SENTENCES
    assert len(languages) == 10 and all(group.keys() == languages for group in groups)
    texts = [text for group in groups for text in group.values()]
    assert len(set(texts)) == len(texts) == len(groups) * 10
    assert space.samples.ASKED.keys() == space.samples.MASKED.keys() == languages
    assert all(groups[0][code].count(word) == 1 for code, word in space.samples.MASKED.items())


# ---- the running page


@pytest.mark.slow
def test_a_public_page_asks_for_no_names_and_one_without_model_does(zoo_model_dir):
    """Both are built, and a wrong --model ends the command, in one process of its own."""
    program = """
import json, sys
import app
from loading import Models
from page import Page
def parts(page):
    return [part["props"].get("elem_id") for part in page.blocks.config["components"]]
listed = Models([sys.argv[1]], only_listed=True)
print(json.dumps([parts(Page(listed, listed.get(sys.argv[1]))), parts(Page(Models([], only_listed=False), None))]))
app.main(["--model", "./nowhere"])
"""
    folder = str(zoo_model_dir("xlm_align"))
    done = subprocess.run([sys.executable, "-c", program, folder], cwd=SPACE, capture_output=True, text=True)
    public, empty = json.loads(done.stdout.splitlines()[0])
    assert {"model", "align-button", "fill-button", "nearest-button"} <= set(public) & set(empty)
    assert "named" in empty and not {"named", "another", "trust"} & set(public)
    assert done.returncode == 2 and "app.py: error: “./nowhere”" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def client(space_server):
    """A client of the page that was started from a copy of the folder alone."""
    gradio_client = pytest.importorskip("gradio_client")
    return gradio_client.Client(space_server[0], verbose=False, analytics_enabled=False)


def test_every_tab_of_the_running_page_answers(space, zoo_model_dir, client, space_server):
    """And nothing of another machine is asked for."""
    assert client.config["analytics_enabled"] is False and not client.config.get("stylesheets")
    encoder, classifier = map(str, space_server[1])
    model = space.loading.load(str(zoo_model_dir("xlm_align")))
    drawn = space.drawing.alignment(space.answers.align_words(model, *PAIR))
    assert client.predict(encoder, *PAIR, "ot_words", "separate", api_name="/align") == drawn
    text = "The <mask> is small."
    drawn = space.drawing.filled(space.answers.fill_masks(model, text, 3))
    assert client.predict(encoder, text, 3, api_name="/fill") == drawn
    assert client.predict(encoder, "a house", "b\nc", api_name="/nearest").count("<li") == 2
    assert client.predict(classifier, "a house", "", api_name="/head").count("<li") == 2
    assert "no masked-LM head" in client.predict(classifier, text, 3, api_name="/fill")


@pytest.mark.parametrize("host, status", [("127.0.0.1", 200), ("localhost:1", 200), ("a.site", 400), ("", 400)])
def test_requests_for_another_host_are_refused(space_server, host, status):
    """A page of another site can have its name resolved to this machine; the browser still sends that name."""
    address = urllib.parse.urlsplit(space_server[0])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    body = json.dumps({"data": [None, "a house", "b"]})
    headers = {"Host": host, "Content-Type": "application/json"}
    connection.request("POST", "/gradio_api/call/nearest", body, headers)
    assert connection.getresponse().status == status
    connection.close()


def test_files_are_refused(space_server):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nb\r\n--x--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(urllib.request.Request(f"{space_server[0]}/gradio_api/upload", body, form))
