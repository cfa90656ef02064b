"""`word-align adapt`: trains an encoder on pairs; the checkpoint aligns by the layer that it recommends."""

import itertools
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from crosslingual_zoo.finetuning.align import adapt as adaptation
from crosslingual_zoo.finetuning.align.command import main
from crosslingual_zoo.finetuning.align.common import load_aligner
from crosslingual_zoo.finetuning.align.gold import Gold
from crosslingual_zoo.finetuning.align.links import read_options
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import read_yaml
from tests.finetuning.labeled_rows import read_rows


def lines_of(path):
    """The lines of a text."""
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def pairs(sample_corpus_dir, tmp_path_factory):
    """File with the 240 German-English pairs of the sample corpus, and two lines without a pair."""
    german = read_rows(sample_corpus_dir / "de" / "train.jsonl")
    english = read_rows(sample_corpus_dir / "en" / "train.jsonl")
    lines = [f"{source['text']} ||| {target['text']}" for source, target in zip(german, english, strict=True)]
    path = tmp_path_factory.mktemp("pairs") / "pairs.txt"
    path.write_text("\n".join(["", *lines, "allein ||| "]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def short(pytestconfig, tmp_path_factory):
    """Shortens the recipes of the command to four steps."""
    folder = tmp_path_factory.mktemp("recipe")
    paths = []
    for path, objective in zip(adaptation.RECIPES, ("tlm", "word_links"), strict=True):
        recipe = read_yaml(str(pytestconfig.rootpath / path))
        (phase,) = recipe["phases"]
        phase |= {"steps": 4, "warmup_steps": 0, "learning_rate": 1e-2}
        phase["objectives"][objective]["batch_size"] = 8
        short_path = folder / Path(path).name
        short_path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        paths.append(str(short_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation, "RECIPES", tuple(paths))
        yield


@pytest.fixture(scope="module")
def adapted(short, pairs, tiny_model, tmp_path_factory):
    """Folder of the adapted model."""
    folder = tmp_path_factory.mktemp("adapted") / "model"
    main(["adapt", str(pairs), f"--model={tiny_model}", f"--output={folder}/"])
    return folder


@pytest.fixture(scope="module")
def gold(sample_corpus_dir, tmp_path_factory):
    """Table of sentences and links of the sample corpus: English, German, links."""
    folder = sample_corpus_dir / "alignments"
    path = tmp_path_factory.mktemp("gold") / "en-de.tsv"
    rows = zip(lines_of(folder / "en-de.txt"), lines_of(folder / "en-de.gold"), strict=True)
    lines = [pair.replace(" ||| ", "\t") + f"\t{links}\n" for pair, links in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_read_data_holds_out_pairs_and_gold(pairs, gold, tiny_model, tmp_path):
    command = [str(pairs), "--gold", str(gold), f"--model={tiny_model}", f"--output={tmp_path / 'model'}"]
    _, texts, training = adaptation.read_options(command)
    data = adaptation.read_data(texts, training.gold)
    assert (len(data.pairs), len(data.held_out)) == (216, 24)
    assert all(map(adaptation.has_words, data.pairs + data.held_out))
    assert (len(data.gold_rows), len(data.held_out_gold.links)) == (15, 5)
    source, target, links = lines_of(gold)[1].split("\t")  # the first line is held out
    first = data.gold_rows[0]
    assert (first["source"], first["target"]) == (source, target)
    assert set(first["links"].split()) == set(links.split())


@pytest.mark.slow
def test_adapt_leaves_a_checkpoint_that_recommends_a_layer(adapted, tiny_model, pairs, word_align):
    """Of nine tenths of the pairs, with all of its settings."""
    before = load_file(tiny_model / "model.safetensors")
    after = load_file(adapted / "model.safetensors")
    frozen = "roberta.embeddings.word_embeddings.weight"
    assert after[frozen].equal(before[frozen])
    assert not any(after[name].equal(before[name]) for name in after if "encoder.layer" in name)
    config = read_json(adapted / "config.json")
    assert (config["model_type"], config["word_alignment_layer"]) == ("xlm_align", 1)
    out, err = word_align(pairs, model=adapted)
    assert len(out.splitlines()) == 242
    assert "0-0" in out
    assert "layer 1 of 2" in err
    left = adapted.with_name("model.training")
    assert (left / "log.txt").exists()
    assert not list(left.rglob("*.safetensors"))
    rows = read_rows(left / "pairs.jsonl")
    assert len(rows) == 216  # of 240, a tenth is held out
    assert all(row["source"] and row["target"] for row in rows)
    recipe = read_yaml(str(left / "run" / "recipe.yaml"))
    assert recipe["model"]["config"]["labeling_rule"] == "ot_words"
    assert recipe["phases"][0]["objectives"]["tlm"]["max_length"] == 64  # the model's positions


@pytest.mark.slow
def test_adapt_to_gold_alone_trains_layers_and_calibration(short, gold, tiny_model, tmp_path):
    main(["adapt", "--gold", str(gold), f"--model={tiny_model}", f"--output={tmp_path / 'model'}"])
    assert len(lines_of(tmp_path / "model.training" / "gold.jsonl")) == 15
    recipe = read_yaml(str(tmp_path / "model.training" / "run" / "recipe.yaml"))
    assert list(recipe["phases"][0]["objectives"]) == ["word_links"]
    assert not recipe["bitext"]
    before = load_file(tiny_model / "model.safetensors")
    after = load_file(tmp_path / "model" / "model.safetensors")
    changed = {name for name in after if "encoder.layer" in name and not after[name].equal(before[name])}
    assert changed
    assert all(f"layer.{recipe['model']['config']['alignment_layer']}." not in name for name in changed)
    calibration = read_json(tmp_path / "model" / "config.json")["word_alignment_calibration"]
    aligner = load_aligner(read_options(["--model", str(tmp_path / "model")])[0])
    assert [aligner.matching["slope"], aligner.matching["offset"]] == calibration


def test_fit_calibration_takes_possible_links_for_right(gold, tiny_model):
    options, _, _ = read_options(["--model", str(tiny_model)])
    pairs = [tuple(line.split("\t")[:2]) for line in lines_of(gold)]

    def offset_of(possible):
        links = adaptation.GoldPairs(pairs, dict.fromkeys(range(len(pairs)), Gold(set(), possible)))
        return adaptation.fit_calibration(options, 1, links)[1]

    assert offset_of(set(itertools.product(range(50), range(50)))) > 1
    assert offset_of(set()) < -1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_adapt_resumes_after_a_stop_and_ends_as_without_one(
    number, adapted, short, pairs, tiny_model, tmp_path, monkeypatch, align_refused
):
    run = tmp_path / "model.training" / "run"
    events = run / "events.jsonl"
    arguments = [str(pairs), f"--model={tiny_model}", f"--output={tmp_path / 'model'}"]

    def interrupt(process):
        while not (events.exists() and events.read_text()):
            assert process.poll() is None
        assert os.getpgid(process.pid) != os.getpgid(0)  # a terminal's Ctrl-C goes to a whole group
        patch.undo()
        os.kill(os.getpid(), number)

    # background jobs of a shell ignore it, and so do their children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
            patch.setattr(subprocess.Popen, "wait", interrupt)
            main(["adapt", *arguments])
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.code == 128 + number
    assert not (tmp_path / "model").exists()
    assert list((run / "checkpoints").glob("step-*"))
    assert "--resume" in align_refused("adapt", *arguments)
    main(["adapt", *arguments, "--resume"])
    ours = load_file(tmp_path / "model" / "model.safetensors")
    theirs = load_file(adapted / "model.safetensors")
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_adapt_refuses_few_sentences_and_an_existing_folder(gold, tmp_path, align_refused):
    few = tmp_path / "few.tsv"
    few.write_text("\n".join(lines_of(gold)[:10]), encoding="utf-8")
    for output, named in ((tmp_path / "new", "10 sentences"), (tmp_path, "exists")):
        assert named in align_refused("adapt", "--gold", few, f"--output={output}")


@pytest.mark.slow
def test_adapt_writes_an_adapter_and_trains_on_from_it(short, gold, pairs, tiny_model, tmp_path, word_align):
    """The adapter of a second run holds what the first one learned, too."""
    first = tmp_path / "first"
    word_align("adapt", "--gold", gold, f"--output={first}", "--save-adapter", "--seed=3")
    assert read_yaml(f"{first}.training/run/recipe.yaml")["seed"] == 3
    facts = read_json(first / "adaptation.json")
    assert facts["data"] == [{"name": "gold links: en-de.tsv", "rows": 15}]
    assert facts["scores"][0]["sentences"] == 5
    assert facts["settings"]["steps"] == 4
    settings = read_json(first / "word_alignment.json")
    assert settings["word_alignment_layer"] == 1
    assert len(settings["word_alignment_calibration"]) == 2

    second = tmp_path / "second"
    word_align("adapt", pairs, f"--adapter={first}", f"--output={second}", "--save-adapter")
    start = load_file(tmp_path / "second.training" / "start" / "model.safetensors")
    plain = load_file(tiny_model / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert not start[name].equal(plain[f"roberta.{name}"])
    assert read_json(second / "word_alignment.json")["word_alignment_calibration"] is None  # the first one's gold
    assert "second" in word_align(pairs, f"--adapter={second}", f"--output={tmp_path / 'links'}").err
