"""A tagging run from the command line to results, resumed; errors."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from finetuning.recipe import TaggingRecipe
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks import tagging
from finetuning.tasks.registry import task_of
from tests.finetuning.labeled_rows import sentences
from tests.finetuning.tasks import encode, record_of
from zoo_core.recipes import load_recipe

COLUMNS = ("input_ids", "attention_mask", "labels")


@pytest.mark.slow
def test_tagging_scores_are_those_of_the_saved_model(people, tmp_path):
    main(people)
    out = tmp_path / "out"
    results = read_results(out)
    assert results["kind"] == "tagging" and list(results.languages) == ["en", "de"]
    assert results.languages["en"]["mean"] > 60  # it has learned something
    assert results.metrics == ["f1", "precision", "recall", "token_accuracy"]
    assert results["protocol"]["metric"]["version"].startswith("1.2.0 (seqeval ")
    assert results["protocol"]["labels"] == ["B-LOC", "B-PER", "I-PER", "O", "I-LOC"]
    assert results["protocol"]["split_texts"]["evaluation"] == {"en": 3, "de": 3}

    record = record_of(out / "seed-1")
    looked_at = {entry["step"]: entry["eval_en_f1"] for entry in record["history"] if "eval_en_f1" in entry}
    assert record["selection_score"] == max(looked_at.values()) == looked_at[record["selected_step"]]

    # the German sentences that are one window, each by itself, without the run's windows and batches
    folder = out / "seed-1" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    by_hand = []
    for row in sentences("de", 9):
        batch = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        if batch["input_ids"].shape[1] <= 40:
            words = batch.word_ids(0)
            with torch.no_grad():
                predicted = model(**batch).logits[0].argmax(-1).tolist()
            by_hand.append([model.config.id2label[predicted[words.index(word)]] for word in range(len(row["tokens"]))])
    recipe = load_recipe(TaggingRecipe, None, people)
    data = encode(recipe, task_of(recipe).read(), tokenizer)
    rows = data.evaluation["de"]
    batch = tagging.TaggingTask.collator(tokenizer)(
        [dict(zip(COLUMNS, map(row.get, COLUMNS), strict=True)) for row in rows]
    )
    with torch.no_grad():
        predictions = model(**batch).logits.argmax(-1).numpy()
    words = tagging.words_of_sentences(rows, predictions)
    found = [[data.label_names[number] for number in sentence] for sentence in words]
    assert len(by_hand) == 6 and [labels for labels in found if len(labels) == 5] == by_hand
    outcome = task_of(recipe).score(data, "evaluation", "de", predictions)
    assert outcome.scores == pytest.approx(record["all_scores"]["de"])


@pytest.mark.slow
def test_open_pads_on_the_right(people, tiny_model, tmp_path):
    left = shutil.copytree(tiny_model, tmp_path / "left")
    settings = json.loads((left / "tokenizer_config.json").read_text(encoding="utf-8"))
    (left / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}), encoding="utf-8")
    assert AutoTokenizer.from_pretrained(left).padding_side == "left"
    short = [*people, "selection=last", "training.max_steps=2"]
    main(short)
    main([*short, f"model={left}", f"output_dir={tmp_path / 'other'}"])
    scores = [read_results(tmp_path / name)["scores"] for name in ("out", "other")]
    assert scores[0] == scores[1]
