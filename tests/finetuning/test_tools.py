"""The tools: XTREME's translations to the rows that recipes read, and text labeled by a tagger."""

import json
import shutil

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from crosslingual_zoo.finetuning.data.label_schemes import to_iob2
from crosslingual_zoo.finetuning.tools.label_text import main as label
from crosslingual_zoo.finetuning.tools.translations import main
from tests.finetuning.labeled_rows import sentences, write_rows

XNLI = ["They left.\tThey stayed.\tSie gingen.\tSie blieben.\tcontradictory", "a\tb\tä\tß\tneutral"]
PAWS = ['He said "a".\tb\tEr sagte "a".\tß\t1', '"\tb\tä\tß\t0']


def published(folder, name, content):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else "".join(line + "\n" for line in content)
    file.write_text(text, encoding="utf-8")
    return file


def squad(*questions):
    """SQuAD's JSON; a question is (id, question, answers), about one context."""
    qas = [
        {"id": name, "question": question, "answers": [{"text": text, "answer_start": at} for text, at in answers]}
        for name, question, answers in questions
    ]
    return json.dumps(
        {"data": [{"title": "t", "paragraphs": [{"context": "Rom ist alt.", "qas": qas}]}], "version": "1"}
    )


def rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def convert(given, written):
    main(["--input", str(given), "--output", str(written)])


def test_convert_files_of_every_task(tmp_path):
    given, out = tmp_path / "xtreme_translations", tmp_path / "translations"
    published(given, "XNLI/translate-train/en-de-translated.tsv", XNLI)
    published(given, "XNLI/translate-test/test-zh-en-translated.tsv", ["前\t后\tbefore\tafter\tentailment"])
    published(given, "PAWSX/translate-train/en-ja-translated.tsv", PAWS)
    for name in (
        "SQuAD/translate-train/squad.translate.train.en-de", "SQuAD/translate-dev/squad.translate.dev.en-de",
        "TyDiQA-GoldP/translate-train/tydiqa.translate.train.en-sw", "MLQA/translate-test/mlqa.translate.test.ar-en",
        "TyDiQA-GoldP/translate-test/tydiqa.translate.test.sw-en", "XQuAD/translate-test/xquad.translate.test.zh-en",
        "XQuAD/pseudo-test/xquad.translate.test.yo-en",  # which is not read
    ):  # fmt: skip
        published(given, f"{name}.json", squad(("q1", "Was ist alt?", [("Rom", 0)])))
    convert(given, out)
    names = "mlqa/ar/test pawsx/ja/train squad/de/train squad/de/validation tydiqa/sw/train tydiqa/sw/validation"
    names += " xnli/de/train xnli/zh/test xquad/zh/validation"
    assert sorted(str(file.relative_to(out).with_suffix("")) for file in out.rglob("*.jsonl")) == names.split()
    # translate-train: the English is the original; translate-test: the translation
    english = {"premise_en": "They left.", "hypothesis_en": "They stayed.", "label": "contradiction"}
    german = {"premise": "Sie gingen.", "hypothesis": "Sie blieben."}
    assert rows(out / "xnli/de/train.jsonl")[0] == german | english
    (row,) = rows(out / "xnli/zh/test.jsonl")
    assert [row[name] for name in ("premise", "premise_en", "label")] == ["前", "before", "entailment"]
    quoted = rows(out / "pawsx/ja/train.jsonl")  # a quotation mark quotes nothing
    assert [(row["sentence1_en"], row["label"]) for row in quoted] == [('He said "a".', 1), ('"', 0)]
    answers = {"text": ["Rom"], "answer_start": [0]}
    for name, suffix in (("squad/de/train", ""), ("xquad/zh/validation", "_en")):
        fields = {"question": "Was ist alt?", "context": "Rom ist alt.", "answers": answers}
        assert rows(out / f"{name}.jsonl") == [{"id": "q1", **{key + suffix: of for key, of in fields.items()}}]


def test_convert_leaves_out_malformed_rows_and_overwrites_nothing(tmp_path, capsys):
    lines = [*PAWS, "a\tb\tä\tß", "a\tb\tä\tß\tä", "a\t \tä\tß\t1", *PAWS * 2]
    published(tmp_path / "in", "PAWSX/en-fr-translated.tsv", lines)
    mine = published(tmp_path / "out", "pawsx/de/train.jsonl", "mine\n")
    published(tmp_path / "in", "PAWSX/en-de-translated.tsv", PAWS)
    rome = [("Rom", 0)]
    asked = [("q1", "Was?", rome), ("q1", "Was?", rome), ("q2", " ", rome), ("q3", "Was?", [])]
    asked += [(f"r{n}", "Was?", [("Rom", -1)]) for n in range(5)]
    published(tmp_path / "in", "squad.translate.train.en-de.json", squad(*asked))
    convert(tmp_path / "in", tmp_path / "out")
    assert len(rows(tmp_path / "out/pawsx/fr/train.jsonl")) == 6 and "6 rows, 3 left out" in capsys.readouterr().out
    assert [row["id"] for row in rows(tmp_path / "out/squad/de/train.jsonl")] == ["q1", *(f"r{n}" for n in range(5))]
    assert mine.read_text() == "mine\n"


def labeled(teacher, rows, folder):
    """The rows, labeled by the teacher into a file of a folder."""
    given, written = write_rows(folder / "de.jsonl", rows), folder / "labeled" / "de" / "train.jsonl"
    options = ["--model", teacher, "--input", given, "--languages", "de", "--output", written, "--max_length", 40]
    label([str(item) for item in options])
    return [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]


def test_label_text_by_the_tagger_keeps_the_rest_of_a_row(people_run, tmp_path):
    teacher = shutil.copytree(people_run / "seed-1" / "model", tmp_path / "teacher")
    config = (teacher / "config.json").read_text()
    (teacher / "config.json").write_text(config.replace("B-LOC", "S-LOC"))  # of another scheme
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
            best = model.eval()(**batch).logits[0].argmax(-1)
        subwords = zip(batch.word_ids(0), batch.tokens(), strict=True)
        texts = [word if token.strip("▁") else None for word, token in subwords]
        places = [texts.index(word) for word in range(len(row["tokens"]))]
        found = [model.config.id2label[best[place].item()] for place in places]
        assert row["labels"] == to_iob2(found, "B-TYPE")
        compared += 1
    assert compared == 6


def test_run_refuses_labels_of_a_tagger_as_gold(people, people_run, tmp_path, refused):
    rows = labeled(
        people_run / "seed-1" / "model", [{"tokens": row["tokens"]} for row in sentences("de", 12)], tmp_path
    )
    (signature,) = {row["labeled_by"] for row in rows}
    assert signature.startswith("xlm-roberta sha256:") and signature.endswith("fine-tuned on people (zero_shot)")
    table = f"path: {tmp_path}/labeled/de, text_columns: [tokens], label_column: labels, split: train, languages: [de]"
    assert "xlm-roberta sha256:" in refused([*people, f"evaluation=[{{{table}}}]", f"output_dir={tmp_path / 'other'}"])
