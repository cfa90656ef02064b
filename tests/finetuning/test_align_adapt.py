"""`word-align adapt`: trains an encoder on pairs; the checkpoint aligns by the layer that it recommends."""

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from safetensors.torch import load_file

from crosslingual_zoo.finetuning.align import adapt as adaptation
from crosslingual_zoo.finetuning.align.command import main
from crosslingual_zoo.finetuning.align.common import load_aligner
from crosslingual_zoo.finetuning.align.gold import Gold
from crosslingual_zoo.finetuning.align.links import read_options
from crosslingual_zoo.zoo_core.recipes import read_yaml

TAB = "\t"


@pytest.fixture(scope="module")
def pairs(sample_corpus_dir, tmp_path_factory):
    """File with the 240 German-English pairs of the sample corpus, and two lines without a pair."""
    sides = []
    for language in ("de", "en"):
        lines = (sample_corpus_dir / language / "train.jsonl").read_text(encoding="utf-8").splitlines()
        sides.append([json.loads(line)["text"] for line in lines])
    path = tmp_path_factory.mktemp("pairs") / "pairs.txt"
    lines = [" ||| ".join(pair) for pair in zip(*sides, strict=True)]
    path.write_text("\n".join(["", *lines, "allein ||| "]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def short(pytestconfig, tmp_path_factory):
    """Shortens the recipes of the command to four steps."""
    folder, paths = tmp_path_factory.mktemp("recipe"), []
    for recipe, objectives in zip(adaptation.RECIPES, (["tlm"], ["word_links"]), strict=True):
        phase = {"steps": 4, "warmup_steps": 0, "learning_rate": 1e-2}
        short = read_yaml(str(pytestconfig.rootpath / recipe))
        short["phases"][0] |= phase
        for name in objectives:
            short["phases"][0]["objectives"][name]["batch_size"] = 8
        paths.append(str(folder / Path(recipe).name))
        Path(paths[-1]).write_text(yaml.safe_dump(short), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation, "RECIPES", tuple(paths))
        yield


@pytest.fixture(scope="module")
def adapted(short, pairs, tiny_model, sample_corpus_dir, tmp_path_factory):
    """Folder of the adapted model."""
    folder = tmp_path_factory.mktemp("adapted") / "model"
    main(["adapt", str(pairs), f"--model={tiny_model}", f"--output={folder}/"])
    return folder


@pytest.fixture(scope="module")
def gold(sample_corpus_dir, tmp_path_factory):
    """Table of sentences and links of the sample corpus: English, German, links."""
    stem = sample_corpus_dir / "alignments" / "en-de"
    pairs, links = (Path(f"{stem}.{end}").read_text(encoding="utf-8").splitlines() for end in ("txt", "gold"))
    path = tmp_path_factory.mktemp("gold") / "en-de.tsv"
    rows = [f"{pair.replace(' ||| ', TAB)}{TAB}{of}" for pair, of in zip(pairs, links, strict=True)]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_adapt_leaves_a_checkpoint_that_recommends_a_layer(adapted, tiny_model, pairs, capsys):
    """Of nine tenths of the pairs, with all of its settings."""
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model, adapted))
    layers = [name for name in after if "encoder.layer" in name]
    assert layers and not any(after[name].equal(before[name]) for name in layers)
    frozen = "roberta.embeddings.word_embeddings.weight"
    assert after[frozen].equal(before[frozen])
    config = json.loads((adapted / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "xlm_align" and type(config["word_alignment_layer"]) is int
    main(["--model", str(adapted), str(pairs)])
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 242 and "0-0" in out
    assert config["word_alignment_layer"] == 1 and "layer 1 of 2" in err
    left = adapted.with_name("model.training")
    assert (left / "log.txt").exists() and not list(left.rglob("*.safetensors"))
    rows = [json.loads(line) for line in (left / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 216 and all(row["source"] and row["target"] for row in rows)  # of 240, a tenth is held out
    recipe = read_yaml(str(left / "run" / "recipe.yaml"))
    assert recipe["model"]["config"]["labeling_rule"] == "ot_words"
    assert recipe["phases"][0]["objectives"]["tlm"]["max_length"] == 64  # the model's positions


def test_adapt_to_gold_alone_trains_layers_and_calibration(short, gold, tiny_model, tmp_path):
    main(["adapt", "--gold", str(gold), f"--model={tiny_model}", f"--output={tmp_path / 'model'}"])
    rows = (tmp_path / "model.training" / "gold.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 15  # of 20, 5 are held out
    # line 2 of the table: the first is held out
    of_line = gold.read_text(encoding="utf-8").splitlines()[1].split(TAB)
    assert list(json.loads(rows[0]).values())[:2] == of_line[:2]
    assert set(json.loads(rows[0])["links"].split()) == set(of_line[2].split())
    recipe = read_yaml(str(tmp_path / "model.training" / "run" / "recipe.yaml"))
    assert list(recipe["phases"][0]["objectives"]) == ["word_links"] and not recipe["bitext"]
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model, tmp_path / "model"))
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    changed = {name for name in after if "encoder.layer" in name and not after[name].equal(before[name])}
    assert changed and all(f"layer.{recipe['model']['config']['alignment_layer']}." not in name for name in changed)
    assert len(config["word_alignment_calibration"]) == 2
    aligner = load_aligner(read_options(["--model", str(tmp_path / "model")])[0])
    assert [aligner.matching[name] for name in ("slope", "offset")] == config["word_alignment_calibration"]


def test_fit_calibration_takes_possible_links_for_right(monkeypatch):
    found = SimpleNamespace(links=[(0, 0)], probabilities=[0.5])
    aligner = SimpleNamespace(method="mutual", align=lambda pairs, probabilities: [found for _ in pairs])
    monkeypatch.setattr(adaptation, "load_aligner", lambda *given, **rule: aligner)
    gold = adaptation.GoldPairs([("a", "b")] * 50, {number: Gold(set(), {(0, 0)}) for number in range(50)})
    assert adaptation.fit_calibration(None, 1, gold)[1] > 1  # the offset; below -1 if they were wrong


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_adapt_resumes_after_a_stop_and_ends_as_without_one(
    number, adapted, short, pairs, tiny_model, tmp_path, monkeypatch, align_refused
):
    given = [f"--model={tiny_model}", str(pairs), f"--output={tmp_path / 'model'}"]
    # background jobs of a shell ignore it, and so do their children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    events = tmp_path / "model.training" / "run" / "events.jsonl"

    def interrupt(process):
        while not (events.exists() and events.read_text()):
            assert process.poll() is None
        assert os.getpgid(process.pid) != os.getpgid(0)  # a terminal's Ctrl-C goes to a whole group
        patch.undo()
        os.kill(os.getpid(), number)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "wait", interrupt)
            with pytest.raises(SystemExit) as stopped:
                main(["adapt", *given])
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.code == 128 + number and not (tmp_path / "model").exists()
    assert list((tmp_path / "model.training" / "run" / "checkpoints").glob("step-*"))
    assert "--resume" in align_refused("adapt", *given)
    main(["adapt", *given, "--resume"])
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "model", adapted))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_adapt_refuses_few_sentences_and_an_existing_folder(gold, tmp_path, align_refused):
    (tmp_path / "few.tsv").write_text("".join(gold.read_text(encoding="utf-8").splitlines(keepends=True)[:10]))
    for output, named in ((tmp_path / "a", "10 sentences"), (tmp_path, "exists")):
        assert named in align_refused("adapt", "--gold", tmp_path / "few.tsv", f"--output={output}")


@pytest.mark.slow
def test_adapt_writes_an_adapter_and_trains_on_from_it(short, gold, pairs, tiny_model, tmp_path, capsys):
    """The adapter of a second run holds what the first one learned, too."""
    first = tmp_path / "first"
    main(["adapt", "--gold", str(gold), f"--model={tiny_model}", f"--output={first}", "--save-adapter", "--seed=3"])
    assert read_yaml(f"{first}.training/run/recipe.yaml")["seed"] == 3
    facts = json.loads((first / "adaptation.json").read_text(encoding="utf-8"))
    assert facts["data"] == [{"name": "gold links: en-de.tsv", "rows": 15}]
    assert facts["scores"][0]["sentences"] == 5 and facts["settings"]["steps"] == 4
    settings = json.loads((first / "word_alignment.json").read_text(encoding="utf-8"))
    assert settings["word_alignment_layer"] == 1 and len(settings["word_alignment_calibration"]) == 2

    second = tmp_path / "second"
    options = [f"--model={tiny_model}", f"--adapter={first}", f"--output={second}", "--save-adapter"]
    main(["adapt", str(pairs), *options])
    start = load_file(tmp_path / "second.training" / "start" / "model.safetensors")
    plain = load_file(tiny_model / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert not start[name].equal(plain[f"roberta.{name}"])
    settings = json.loads((second / "word_alignment.json").read_text(encoding="utf-8"))
    assert settings["word_alignment_calibration"] is None  # of the first one's gold, no more
    capsys.readouterr()
    main([str(pairs), f"--model={tiny_model}", f"--adapter={second}", f"--output={tmp_path / 'links'}"])
    assert "second" in capsys.readouterr().err
