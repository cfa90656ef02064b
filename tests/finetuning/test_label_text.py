"""Text labeled by a tagger: each sentence as the tagger labels it alone, and a run that trains on it."""

import json

import torch
from datasets import Dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer

from finetuning.data.label_schemes import to_iob2
from finetuning.results import read_results
from finetuning.run import main as run
from finetuning.tools.label_text import main as label
from tests.finetuning.labeled_rows import sentences, write_rows


def labeled(teacher, rows, folder):
    """The rows, labeled by the teacher into a file of a folder."""
    given, written = write_rows(folder / "de.jsonl", rows), folder / "labeled" / "de" / "train.jsonl"
    options = ["--model", teacher, "--input", given, "--languages", "de", "--output", written, "--max_length", 40]
    label([str(item) for item in options])
    return [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]


def test_label_text_by_the_tagger_keeps_the_rest_of_a_row(people_run, tmp_path):
    teacher = people_run / "seed-1" / "model"
    rows = [{"id": n, "tokens": row["tokens"], "tokens_en": ["x"]} for n, row in enumerate(sentences("de", 9))]
    rows.insert(3, {"id": 99, "tokens": [], "tokens_en": ["x"]})
    written = labeled(teacher, rows, tmp_path)
    assert [{key: row[key] for key in rows[0]} for row in written] == [row for row in rows if row["tokens"]]

    tokenizer, model = AutoTokenizer.from_pretrained(teacher), AutoModelForTokenClassification.from_pretrained(teacher)
    assert model.config.label_subword == "first_with_text"
    compared = 0
    for row in written:
        batch = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        if batch["input_ids"].shape[1] > 40:  # several windows
            assert len(row["labels"]) == len(row["tokens"]) == 20
            continue
        with torch.no_grad():
            best = model.eval()(**batch).logits[0].softmax(-1).max(-1)
        subwords = zip(batch.word_ids(0), batch.tokens(), strict=True)
        texts = [word if token.strip("▁") else None for word, token in subwords]
        places = [texts.index(word) for word in range(len(row["tokens"]))]
        found = [model.config.id2label[best.indices[place].item()] for place in places]
        assert row["labels"] == to_iob2(found, "B-TYPE")
        assert abs(row["confidence"] - best.values[places].mean().item()) < 1e-3
        compared += 1
    assert compared == 6


def test_run_on_labeled_text_names_the_tagger(people, people_run, tmp_path, refused):
    rows = labeled(
        people_run / "seed-1" / "model", [{"tokens": row["tokens"]} for row in sentences("de", 12)], tmp_path
    )
    Dataset.from_list(sentences("en", 9)).to_parquet(tmp_path / "en.parquet")
    table = "{path: %s, text_columns: [tokens], label_column: %s}"
    german = table % (f"{tmp_path}/labeled/de", "labels, languages: [de]")
    train = f"train=[{table % (f'{tmp_path}/en.parquet', 'ner_tags')}, {german}]"
    setting = ["setting=translate_train_all", "translations_from=somebody", "training.max_steps=2", "selection=last"]
    run([*people, train, *setting])
    (signature,) = {row["labeled_by"] for row in rows}
    assert signature.startswith("xlm-roberta sha256:") and signature.endswith("fine-tuned on people (zero_shot)")
    _, table = read_results(tmp_path / "out")["protocol"]["training_data"]
    assert table["labeled_by"] == [signature] and table["rows"] == 12
    evaluated = f"evaluation=[{german.replace('labels,', 'labels, split: train,')}]"
    assert "xlm-roberta sha256:" in refused([*people, evaluated, f"output_dir={tmp_path / 'other'}"])
