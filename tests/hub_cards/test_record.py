"""provenance/: what is collected beside the weights, what is left behind, and what is refused."""

import json
import os
import shutil

import pytest
import yaml

from hub_cards.card import write_card
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
    assert first.content["languages"] == json.loads(files[0].read_text())["languages"]
    assert second.name == "ntrex_retrieval" and check_record(folder) == []
    assert set(record.licenses) == {"owner/text", "local/bible", "owner/bitext", "google/xtreme", "local/ntrex"}


def test_no_run_above_and_no_results(made_up_run, tmp_path):
    folder, _ = made_up_run("veco")
    alone = shutil.copytree(folder, tmp_path / "alone")
    write_card(alone)
    record = read_record(alone)
    assert (record.recipe, record.run, record.results, record.curves) == ({}, {}, [], None)
    write_card(alone, run_dir=folder.parent)  # the run that made it is known by the weights
    assert read_record(alone).recipe["seed"] == 3


def test_a_run_of_another_model_is_refused(made_up_run, zoo_model_dir):
    folder, _ = made_up_run("veco")
    with pytest.raises(ValueError, match="made another model than .*: their fingerprints differ.*leave --run out"):
        write_card(zoo_model_dir("xlm_align", copy=True), run_dir=folder.parent)


def suite_of(files, tasks):
    """The folder of a suite, whose tasks are run folders of these results."""
    suite = files[0].parents[1] / "suite"
    for file in files:
        shutil.copytree(file.parent, suite / file.parent.name)
    (suite / "results.json").write_text(
        json.dumps({"format": 1, "kind": "benchmark", "suite": {"tasks": [{"name": name} for name in tasks]}})
    )
    return suite


def test_files_folders_and_suites(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging", "retrieval")
    suite = suite_of(files, ["udpos", "xnli", "ntrex_retrieval"])
    names = ["udpos", "xnli", "ntrex_retrieval"]  # as the suite has them
    for paths in ([suite], [suite / "results.json"], [suite, suite / "xnli", suite / "udpos" / "results.json"]):
        shutil.rmtree(folder / "provenance", ignore_errors=True)
        shutil.rmtree(folder / ".eval_results", ignore_errors=True)
        write_card(folder, paths)
        assert [result.name for result in read_record(folder).results] == names
    (suite / "results.json").unlink()  # it has not ended
    shutil.rmtree(folder / "provenance")
    shutil.rmtree(folder / ".eval_results")
    write_card(folder, [suite])
    assert len(read_record(folder).results) == 3
    with pytest.raises(ValueError, match="nor a folder with one.*Name that file"):
        write_card(folder, [folder])


def test_results_are_added_and_replaced(made_up_run):
    folder, (first, second) = made_up_run("veco", "classification", "tagging")
    write_card(folder, [first])
    write_card(folder, [second])
    assert [result.name for result in read_record(folder).results] == ["xnli", "udpos"]
    content = json.loads(first.read_text())
    content["warnings"] = ["run again"]
    first.write_text(json.dumps(content))
    (first.parent / "scores.png").unlink()
    write_card(folder, [first])  # the same run: its results take the place of the old ones, and of their plot
    xnli, udpos = read_record(folder).results
    assert xnli.content["warnings"] == ["run again"] and xnli.figures == []
    assert not (folder / "provenance" / "figures" / "xnli-scores.png").exists()
    other = shutil.copytree(first.parent, first.parent.with_name("elsewhere"))
    content["warnings"] = ["another run"]
    (other / "results.json").write_text(json.dumps(content))
    write_card(folder, [other])  # another run of the task
    assert [result.name for result in read_record(folder).results] == ["xnli", "udpos", "xnli-2"]


def test_results_of_several_models_are_of_each(made_up_run):
    folder, (file,) = made_up_run("veco", "word_alignment")
    content = json.loads(file.read_text())
    content["model"]["fingerprint"] = f"sha256:other+{content['model']['fingerprint']}"
    file.write_text(json.dumps(content))
    write_card(folder, [file])
    assert len(read_record(folder).results) == 1


def test_results_of_other_weights_are_refused(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging")
    content = json.loads(files[1].read_text())
    content["model"]["fingerprint"] = "sha256:of another one"
    files[1].write_text(json.dumps(content))
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=r"udpos/results.json was measured on .*sha256:of another.*evaluate it again"):
        write_card(folder, files)
    assert sorted(folder.rglob("*")) == before  # nothing of the first one either


def test_plots_that_show_a_path_are_drawn_anew(made_up_run):
    folder, (file,) = made_up_run("veco", "retrieval")
    content = json.loads(file.read_text())
    content["model"]["folder"] = str(folder)
    file.write_text(json.dumps(content))
    write_card(folder, [file])
    record = read_record(folder)
    (result,) = record.results
    assert record.figures[result.figures[0]].startswith(b"\x89PNG")
    assert result.content["model"]["folder"] == ".../veco-made-up/model"


def started_from(run, path, **facts):
    """The recipe of a run, which was started from `path` in the folder above it."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["output_dir"], recipe["model"]["start_from"] = run.name, path
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (run / "run.json").write_text(json.dumps({**json.loads((run / "run.json").read_text()), **facts}))


def test_a_local_start_is_local_from_everywhere(made_up_run, tmp_path, monkeypatch):
    folder, _ = made_up_run("metaxlm")
    (tmp_path / "mine" / "minilm").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    started_from(folder.parent, "mine/minilm")
    write_card(folder)
    assert read_record(folder).recipe["model"]["start_from"] == "./mine/minilm"  # by the recipe's output_dir
    shutil.rmtree(tmp_path / "mine")
    write_card(folder)
    assert read_record(folder).recipe["model"]["start_from"] == "./mine/minilm"  # as it was collected
    started_from(folder.parent, "my/start", meta_pretrained={"path": "my/start", "fingerprint": "sha256:0"})
    write_card(folder)
    assert read_record(folder).recipe["model"]["start_from"] == "./my/start"  # only a folder has a fingerprint
    started_from(folder.parent, "me/minilm", meta_pretrained=None)
    write_card(folder)
    assert read_record(folder).recipe["model"]["start_from"] == "me/minilm"


def test_the_same_results_from_another_directory_are_the_same(made_up_run, tmp_path, monkeypatch):
    folder, files = made_up_run("veco", "classification")
    write_card(folder, files)
    monkeypatch.chdir(folder.parent)
    write_card(folder, ["xnli"])
    moved = shutil.copytree(files[0].parent, tmp_path / "moved")
    write_card(folder, [moved])
    assert [result.name for result in read_record(folder).results] == ["xnli"]


def test_two_runs_of_one_name_are_both_kept(made_up_run, tmp_path):
    folder, (file,) = made_up_run("veco", "classification")
    runs = [shutil.copytree(file.parent, tmp_path / name / "suite" / "xnli") for name in ("a", "b")]
    content = json.loads(file.read_text())
    content["hyperparameters"]["learning_rate"] = 1e-4
    (runs[1] / "results.json").write_text(json.dumps(content))
    for _ in range(2):
        write_card(folder, runs)
        found = [result.content["hyperparameters"]["learning_rate"] for result in read_record(folder).results]
        assert found == [2e-5, 1e-4]


def test_a_home_folder_is_not_named(made_up_run, tmp_path, monkeypatch):
    folder, (file,) = made_up_run("veco", "classification")
    monkeypatch.setenv("HOME", str(folder.parent))
    write_card(folder, [file])
    assert read_record(folder).results[0].folder == "xnli"


def test_a_suite_without_results_is_refused(made_up_run, tmp_path):
    folder, _ = made_up_run("veco")
    (tmp_path / "results.json").write_text(json.dumps({"format": 1, "kind": "benchmark", "suite": {"tasks": []}}))
    with pytest.raises(ValueError, match="a suite without a task's results.*Name the"):
        write_card(folder, [tmp_path / "results.json"])


def test_what_was_known_of_a_license_stays(made_up_run, tmp_path):
    folder, _ = made_up_run("veco")
    card = tmp_path / "mirror" / "local" / "bible" / "README.md"
    card.parent.mkdir(parents=True)
    card.write_text("---\nlicense: mit\n---\n")
    started_from(folder.parent, None)
    recipe = yaml.safe_load((folder.parent / "recipe.yaml").read_text())
    (folder.parent / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "hub_root": "mirror"}))
    write_card(folder)  # relative to where the run was started
    assert read_record(folder).licenses["local/bible"]["id"] == "mit"
    shutil.rmtree(tmp_path / "mirror")
    write_card(folder)
    assert read_record(folder).licenses["local/bible"]["id"] == "mit"


@pytest.mark.parametrize("before", [[], ["xnli"], ["udpos"]])
def test_an_interrupted_call_goes_on(made_up_run, monkeypatch, before):
    folder, files = made_up_run("veco", "classification", "tagging")
    if before:
        write_card(folder, [file for file in files if file.parent.name in before])
        content = json.loads(files[0].read_text())
        content["warnings"] = ["run again"]
        files[0].write_text(json.dumps(content))
    replace, left = os.replace, [0]

    def killed_later(*paths):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr("hub_cards.record.os.replace", killed_later)
    for place in range(20):
        left[0] = place
        try:
            write_card(folder, files)
            break
        except KeyboardInterrupt:
            continue
    assert place >= 3 and check_record(folder) == []
    assert sorted(result.name for result in read_record(folder).results) == ["udpos", "xnli"]
    assert ("run again" in (folder / "README.md").read_text()) == bool(before)


def test_overwriting_the_card_keeps_the_results(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging")
    write_card(folder, files, repo="me/model")
    (folder / "README.md").write_text("mine")
    write_card(folder, [files[1]], overwrite=True)
    record = read_record(folder)
    assert [result.name for result in record.results] == ["xnli", "udpos"] and record.repo == "me/model"
    (folder / "provenance" / "results" / "xnli.json").unlink()  # and this is how one is taken out
    with pytest.raises(ValueError, match="xnli.json"):
        write_card(folder)
    write_card(folder, overwrite=True)
    assert [result.name for result in read_record(folder).results] == ["udpos"] and check_record(folder) == []


def problems_after(folder, files, change):
    write_card(folder, files, overwrite=True)
    change(folder / "provenance")
    problems = check_record(folder)
    if problems:
        with pytest.raises(ValueError, match="hub_cards.card with --run, --results and --overwrite"):
            read_record(folder)
        if "recipe" not in problems[0]:  # that of the run above is collected each time
            with pytest.raises(ValueError, match="hub_cards.card with --run, --results and --overwrite"):
                write_card(folder)
    write_card(folder, files, overwrite=True)  # the remedy
    assert check_record(folder) == []
    return problems


def test_a_record_that_was_changed_is_noticed(made_up_run):
    folder, files = made_up_run("veco", "classification")

    def better(record):
        file = record / "results" / "xnli.json"
        file.write_text(file.read_text().replace("72.25", "92.25"))

    def point_outside(record):
        index = json.loads((record / "record.json").read_text())
        index["files"]["provenance/../../precious"] = "0"
        (record / "record.json").write_text(json.dumps(index))

    for change, what in (
        (better, "results/xnli.json"),
        (lambda record: (record / "recipe.yaml").unlink(), "recipe.yaml"),
        (lambda record: (record / "record.json").unlink(), "record.json"),
        (lambda record: (record / "record.json").write_text("{"), "record.json"),
        (point_outside, "record.json"),
    ):
        (problem,) = problems_after(folder, files, change)
        assert what in problem
    precious = folder.parent / "precious"
    precious.write_text("mine")
    assert problems_after(folder, files, point_outside) and precious.read_text() == "mine"


def test_files_of_ones_own_are_not_lost(made_up_run):
    folder, files = made_up_run("veco", "classification")
    (folder / "provenance" / "results").mkdir(parents=True)
    mine = folder / "provenance" / "results" / "xnli.json"
    mine.write_text("mine")
    with pytest.raises(ValueError, match="xnli.json was not written by hub_cards"):
        write_card(folder, files)
    with pytest.raises(ValueError, match="record.json"):
        write_card(folder)
    assert mine.read_text() == "mine"
    shutil.rmtree(folder / "provenance")
    entry = folder / ".eval_results" / "xnli.yaml"
    entry.parent.mkdir()
    entry.write_text("mine")
    with pytest.raises(ValueError, match="xnli.yaml was not written by hub_cards.*--overwrite"):
        write_card(folder, files)
    assert entry.read_text() == "mine" and not (folder / "provenance").exists()
    write_card(folder, files, overwrite=True)
    assert yaml.safe_load(entry.read_text())[0]["value"] == 62.2
    entry.write_text("edited")
    (folder / "provenance" / "notes.md").write_text("mine")
    assert "notes.md" in check_record(folder)[-1]
    with pytest.raises(ValueError, match="was changed since it was collected"):
        write_card(folder, files)
    write_card(folder, files, overwrite=True)
    assert (folder / "provenance" / "notes.md").read_text() == "mine"


def test_nothing_is_left_of_a_write_that_failed(made_up_run, monkeypatch):
    folder, files = made_up_run("veco", "classification")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("hub_cards.record.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_card(folder, files)
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


def test_a_folder_with_the_names_of_before_is_read_and_renamed(made_up_run):
    folder, files = made_up_run("veco", "classification")
    write_card(folder, files, license="apache-2.0")
    expected = read_record(folder)
    (folder / "provenance").rename(folder / "record")
    index = folder / "record" / "record.json"
    text = index.read_text().replace("provenance/", "record/").replace('"license', '"licence')
    index.write_text(text)
    assert check_record(folder) == [] and read_record(folder) == expected
    write_card(folder)
    assert read_record(folder) == expected and not (folder / "record").exists()
    assert "licence" not in (folder / "provenance" / "record.json").read_text()
