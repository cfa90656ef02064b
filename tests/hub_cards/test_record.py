"""provenance/ and the command that writes it with the card: what is collected, what is left behind, what is refused."""

import json
import os
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from finetuning.results import load_results
from hub_cards.card import main, write_card
from hub_cards.record import check_record, forget_paths, read_record
from zoo_core.provenance import folder_fingerprint


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/tmp/w/minilm/model", ".../minilm/model"),
        ("/runs/x/seed-1/model", ".../x/seed-1/model"),
        ("see /data/mine.tsv, line 3.", "see .../mine.tsv, line 3."),
        ("run.py --config /a/b.yaml hub_root=/mirror", "run.py --config .../b.yaml hub_root=.../mirror"),
        ("~/texts/sw.txt", ".../sw.txt"),
        ("file:///srv/texts/sw.txt", ".../sw.txt"),
        ("in '/srv/a' and (/srv/b)", "in '.../a' and (.../b)"),
        (".../minilm/model", ".../minilm/model"),
        ("https://huggingface.co/me/model", "https://huggingface.co/me/model"),
        ("hf://datasets/me/data@main/x", "hf://datasets/me/data@main/x"),
        ("de -> en, 1/2, </s>, n/a, / and ../shared/hub", "de -> en, 1/2, </s>, n/a, / and ../shared/hub"),
        ("FacebookAI/xlm-roberta-base", "FacebookAI/xlm-roberta-base"),
        ("/", "/"),
    ],
)  # fmt: skip
def test_paths_of_the_machine_are_forgotten(text, kept):
    assert forget_paths(text) == kept
    assert forget_paths({text: [text, 1, None], "is_local": True, "local_files_only": True}) == {kept: [kept, 1, None]}


def test_a_folder_that_could_be_an_id_of_the_hub_is_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "minilm").mkdir(parents=True)
    (tmp_path / "with blanks").mkdir()
    assert forget_paths(["runs/minilm", "runs/other"]) == ["./runs/minilm", "runs/other"]
    assert forget_paths(str(tmp_path / "with blanks")) == ".../with blanks"


def test_the_name_of_the_machine_is_forgotten(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "anna-laptop")
    assert forget_paths("ran on anna-laptop, not anna-laptop2") == "ran on host, not anna-laptop2"


def test_what_is_collected(made_up_run):
    folder, files = made_up_run("veco", "classification", "retrieval")
    write_card(folder, files, repo="me/model")
    record = read_record(folder)
    assert record.weights == folder_fingerprint(folder) and record.repo == "me/model"
    assert record.recipe["tokenizer"] == ".../tokenizer" and record.recipe["phases"][0]["steps"] == 1500
    assert record.run["sessions"][0]["command"].endswith("--config .../recipe.yaml hub_root=.../mirror")
    assert record.curves == "provenance/figures/curves.png" and record.figures[record.curves] == b"\x89PNG curves"
    first, second = record.results
    assert (first.name, first.own, first.date) == ("xnli", False, "2026-11-20")
    assert first.folder == "veco-made-up/xnli" and first.figures == ["provenance/figures/xnli-scores.png"]
    assert first.content["scores"] == load_results(files[0])["scores"]
    assert second.name == "ntrex_retrieval" and check_record(folder) == []


def edit(file, **values):
    """Changes fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def names(folder):
    return [result.name for result in read_record(folder).results]


def test_no_run_above_and_no_results(made_up_run, zoo_model_dir, tmp_path):
    folder, _ = made_up_run("veco")
    alone = shutil.copytree(folder, tmp_path / "alone")
    write_card(alone)
    record = read_record(alone)
    assert (record.recipe, record.run, record.results, record.curves) == ({}, {}, [], None)
    write_card(alone, run_dir=folder.parent)  # the run that made it is known by the weights
    assert read_record(alone).recipe["seed"] == 3
    with pytest.raises(ValueError, match="made another model"):
        write_card(zoo_model_dir("xlm_align", copy=True), run_dir=folder.parent)


def test_files_folders_and_suites(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging", "retrieval")
    suite = files[0].parents[1] / "suite"
    for file in files:
        shutil.copytree(file.parent, suite / file.parent.name)
    tasks = ["udpos", "xnli", "ntrex_retrieval"]
    content = {"format": 2, "kind": "benchmark", "suite": {"tasks": [{"name": name} for name in tasks]}}
    (suite / "results.json").write_text(json.dumps(content))
    for paths in ([suite], [suite / "results.json"], [suite, suite / "xnli", suite / "udpos" / "results.json"]):
        shutil.rmtree(folder / "provenance", ignore_errors=True)
        write_card(folder, paths, overwrite=True)
        assert names(folder) == tasks  # in the suite's order
    (suite / "results.json").unlink()  # it has not ended
    shutil.rmtree(folder / "provenance")
    write_card(folder, [suite], overwrite=True)
    assert sorted(names(folder)) == sorted(tasks)
    with pytest.raises(ValueError, match="results"):
        write_card(folder, [folder])


def test_results_are_added_and_replaced(made_up_run, tmp_path):
    folder, (first, second) = made_up_run("veco", "classification", "tagging")
    write_card(folder, [first])
    write_card(folder, [second])
    assert names(folder) == ["xnli", "udpos"]
    edit(first, warnings=["run again"])
    (first.parent / "scores.png").unlink()
    write_card(folder, [first])  # the same run: its results take the place of the old ones, and of their plot
    xnli, udpos = read_record(folder).results
    assert xnli.content["warnings"] == ["run again"] and xnli.figures == []
    assert not (folder / "provenance" / "figures" / "xnli-scores.png").exists()
    moved = shutil.copytree(first.parent, tmp_path / "moved")
    write_card(folder, [moved])  # the same results elsewhere
    assert names(folder) == ["xnli", "udpos"]
    edit(moved / "results.json", warnings=["another run"])
    for _ in range(2):  # another run of the task; in one call, too, both are kept
        write_card(folder, [first, moved])
        assert names(folder) == ["xnli", "udpos", "xnli-2"]
        assert [r.content["warnings"] for r in read_record(folder).results[::2]] == [["run again"], ["another run"]]


def test_only_results_of_these_weights(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging")
    model = json.loads(files[1].read_text())["model"]
    edit(files[1], model=model | {"fingerprint": "sha256:of another one"})
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match="udpos/results.json is of the weights"):
        write_card(folder, files)
    assert sorted(folder.rglob("*")) == before  # nothing of the first one either
    edit(files[1], model=model | {"fingerprint": f"sha256:other+{model['fingerprint']}"})  # of several seeds' models
    write_card(folder, files)
    assert names(folder) == ["xnli", "udpos"]


def test_a_record_of_other_weights_is_refused(made_up_run):
    folder, (file,) = made_up_run("veco", "classification")
    write_card(folder, [file])
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "model.safetensors")
    for arguments in ({}, {"results": [file], "overwrite": True}):
        with pytest.raises(ValueError, match="weights"):
            write_card(folder, **arguments)
    edit(file, model={"folder": "x", "fingerprint": folder_fingerprint(folder)})  # measured again
    write_card(folder, [file], overwrite=True)


def test_plots_that_show_a_path_are_drawn_anew(made_up_run):
    folder, (file,) = made_up_run("veco", "retrieval")
    edit(file, model=json.loads(file.read_text())["model"] | {"folder": str(folder)})
    write_card(folder, [file])
    record = read_record(folder)
    (result,) = record.results
    assert len(record.figures[result.figures[0]]) > 1000
    assert result.content["model"]["folder"] == ".../veco-made-up/model"


def started_from(run, path, recipe=None, **facts):
    """The recipe of a run, which was started from `path` in the folder above it."""
    content = yaml.safe_load((run / "recipe.yaml").read_text()) | (recipe or {})
    content["output_dir"], content["model"]["start_from"] = run.name, path
    (run / "recipe.yaml").write_text(yaml.safe_dump(content))
    edit(run / "run.json", **facts)


def test_a_local_start_is_local_from_everywhere(made_up_run, tmp_path, monkeypatch):
    folder, _ = made_up_run("metaxlm")
    (tmp_path / "mine" / "minilm").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def start():
        write_card(folder)
        return read_record(folder).recipe["model"]["start_from"]

    started_from(folder.parent, "mine/minilm")
    assert start() == "./mine/minilm"  # by the recipe's output_dir
    shutil.rmtree(tmp_path / "mine")
    assert start() == "./mine/minilm"  # as it was collected
    started_from(folder.parent, "my/start", meta_pretrained={"path": "my/start", "fingerprint": "sha256:0"})
    assert start() == "./my/start"  # only a folder has a fingerprint
    started_from(folder.parent, "me/minilm", meta_pretrained=None)
    assert start() == "me/minilm"


def test_a_recipe_names_licenses_of_data(made_up_run):
    folder, _ = made_up_run("veco")
    started_from(folder.parent, None, {"licenses": {"local/bible": "cc0-1.0"}})
    assert "| bible | training | cc0-1.0 |" in write_card(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("before", [[], ["xnli"]])
def test_an_interrupted_call_goes_on(made_up_run, monkeypatch, before):
    folder, files = made_up_run("veco", "classification", "tagging")
    if before:
        write_card(folder, [file for file in files if file.parent.name in before])
        edit(files[0], warnings=["run again"])
    replace, left = os.replace, [0]

    def killed_later(*paths):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr("zoo_core.provenance.os.replace", killed_later)
    for place in range(20):
        left[0] = place
        try:
            write_card(folder, files)
            break
        except KeyboardInterrupt:
            assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
    assert place >= 3 and check_record(folder) == []
    assert sorted(names(folder)) == ["udpos", "xnli"]
    assert ("run again" in (folder / "README.md").read_text()) == bool(before)


def test_overwriting_the_card_keeps_the_results(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging")
    write_card(folder, files, repo="me/model")
    (folder / "README.md").write_text("mine")
    with pytest.raises(ValueError, match="was not written by hub_cards"):
        write_card(folder, files)
    write_card(folder, [files[1]], overwrite=True)
    assert names(folder) == ["xnli", "udpos"] and read_record(folder).repo == "me/model"
    (folder / "provenance" / "results" / "xnli.json").unlink()  # and this is how one is taken out
    write_card(folder)
    assert names(folder) == ["udpos"] and check_record(folder) == []
    assert not (folder / ".eval_results" / "xnli.yaml").exists()


def point_outside(place):
    index = json.loads((place / "record.json").read_text())
    edit(place / "record.json", results=index["results"] | {"../../../precious": index["results"]["xnli.json"]})


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / "record.json").unlink(),
        lambda place: (place / "record.json").write_text("{"),
        lambda place: edit(place / "record.json", results=[]),
        point_outside,
    ],
)
def test_a_record_that_is_none_is_noticed(made_up_run, change):
    folder, files = made_up_run("veco", "classification")
    write_card(folder, files)
    (folder.parent / "precious").write_text("mine")
    change(folder / "provenance")
    (problem,) = check_record(folder)
    assert "provenance/record.json" in problem
    with pytest.raises(ValueError, match="record.json"):
        write_card(folder)
    write_card(folder, files, overwrite=True)  # the remedy
    assert (folder.parent / "precious").read_text() == "mine" and check_record(folder) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", "."], "is not a model folder"),
        (["--model", "pickled"], "safetensors"),
        (["--results", "nowhere.json"], "nowhere.json"),
        (["--results", "run.json"], "run.json"),
        (["--run", "xnli"], "recipe.yaml"),
        (["--repo", "my model"], "--repo"),
        (["--repo", "me/modèle"], "me/modèle"),
        (["--base-model", "runs/minilm"], "--base-model"),
        (["--base-model", "me/other"], "FacebookAI/xlm-roberta-base"),
    ],
)
def test_what_the_command_refuses(made_up_run, monkeypatch, capsys, arguments, named):
    folder, _ = made_up_run("veco", "classification")
    monkeypatch.chdir(folder.parent)
    pickled = folder.parent / "pickled"
    shutil.copytree(folder, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(arguments if "--model" in arguments else ["--model", "model", *arguments])
    assert stop.value.code == 2 and named in capsys.readouterr().err
    assert sorted(folder.parent.rglob("*")) == before


def test_a_license_of_ones_own(made_up_run):
    folder, _ = made_up_run("veco")
    link = "https://huggingface.co/me/license"
    main(["--model", str(folder), "--license", "other", "--license-name", "ours", "--license-link", link])
    data = ModelCard.load(folder / "README.md").data
    assert (data.license, data.license_name, data.license_link) == ("other", "ours", link)
