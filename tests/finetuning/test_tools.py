"""The tools: XTREME's translations to the rows that recipes read, and text labeled by a tagger."""

import json
import shutil

from transformers import AutoModelForTokenClassification, AutoTokenizer

from crosslingual_zoo.finetuning.data.label_schemes import to_iob2
from crosslingual_zoo.finetuning.tools.label_text import main as label
from crosslingual_zoo.finetuning.tools.translations import main
from tests.finetuning.labeled_rows import read_rows, sentences, write_rows
from tests.finetuning.tasks import labels_of_words

XNLI = ["They left.\tThey stayed.\tSie gingen.\tSie blieben.\tcontradictory", "a\tb\tä\tß\tneutral"]
PAWS = ['He said "a".\tb\tEr sagte "a".\tß\t1', '"\tb\tä\tß\t0']


def published(folder, name, content):
    """A file of the published translations: of lines, or of a text."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = "".join(line + "\n" for line in content)
    file.write_text(content, encoding="utf-8")
    return file


def squad(*questions):
    """SQuAD's JSON; a question is (id, question, answers), about one context."""
    qas = []
    for name, question, answers in questions:
        listed = [{"text": text, "answer_start": start} for text, start in answers]
        qas.append({"id": name, "question": question, "answers": listed})
    paragraphs = [{"context": "Rom ist alt.", "qas": qas}]
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}], "version": "1"})


def convert(source, written):
    main(["--input", str(source), "--output", str(written)])


def test_convert_files_of_every_task(tmp_path):
    source = tmp_path / "xtreme_translations"
    out = tmp_path / "translations"
    published(source, "XNLI/translate-train/en-de-translated.tsv", XNLI)
    published(source, "XNLI/translate-test/test-zh-en-translated.tsv", ["前\t后\tbefore\tafter\tentailment"])
    published(source, "PAWSX/translate-train/en-ja-translated.tsv", PAWS)
    for name in (
        "SQuAD/translate-train/squad.translate.train.en-de", "SQuAD/translate-dev/squad.translate.dev.en-de",
        "TyDiQA-GoldP/translate-train/tydiqa.translate.train.en-sw", "MLQA/translate-test/mlqa.translate.test.ar-en",
        "TyDiQA-GoldP/translate-test/tydiqa.translate.test.sw-en", "XQuAD/translate-test/xquad.translate.test.zh-en",
        "XQuAD/pseudo-test/xquad.translate.test.yo-en",  # which is not read
    ):  # fmt: skip
        published(source, f"{name}.json", squad(("q1", "Was ist alt?", [("Rom", 0)])))
    convert(source, out)
    names = "mlqa/ar/test pawsx/ja/train squad/de/train squad/de/validation tydiqa/sw/train tydiqa/sw/validation"
    names += " xnli/de/train xnli/zh/test xquad/zh/validation"
    assert sorted(str(file.relative_to(out).with_suffix("")) for file in out.rglob("*.jsonl")) == names.split()
    # translate-train: the English is the original; translate-test: the translation
    english = {"premise_en": "They left.", "hypothesis_en": "They stayed.", "label": "contradiction"}
    german = {"premise": "Sie gingen.", "hypothesis": "Sie blieben."}
    assert read_rows(out / "xnli/de/train.jsonl")[0] == german | english
    (row,) = read_rows(out / "xnli/zh/test.jsonl")
    assert (row["premise"], row["premise_en"], row["label"]) == ("前", "before", "entailment")
    sentences_and_labels = [(row["sentence1_en"], row["label"]) for row in read_rows(out / "pawsx/ja/train.jsonl")]
    assert sentences_and_labels == [('He said "a".', 1), ('"', 0)]  # a quotation mark quotes nothing
    german = {"question": "Was ist alt?", "context": "Rom ist alt.", "answers": {"text": ["Rom"], "answer_start": [0]}}
    assert read_rows(out / "squad/de/train.jsonl") == [{"id": "q1", **german}]
    english = {f"{name}_en": value for name, value in german.items()}
    assert read_rows(out / "xquad/zh/validation.jsonl") == [{"id": "q1", **english}]


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
    assert len(read_rows(tmp_path / "out/pawsx/fr/train.jsonl")) == 6
    assert "6 rows, 3 left out" in capsys.readouterr().out
    assert [row["id"] for row in read_rows(tmp_path / "out/squad/de/train.jsonl")] == [
        "q1",
        *(f"r{n}" for n in range(5)),
    ]
    assert mine.read_text() == "mine\n"


def labeled(teacher, rows, folder):
    """The rows, labeled by the teacher into a file of a folder."""
    table = write_rows(folder / "de.jsonl", rows)
    written = folder / "labeled" / "de" / "train.jsonl"
    options = ["--model", teacher, "--input", table, "--languages", "de", "--output", written, "--max_length", 40]
    label([str(item) for item in options])
    return read_rows(written)


def test_label_text_by_the_tagger_keeps_the_rest_of_a_row(people_run, tmp_path):
    teacher = shutil.copytree(people_run / "seed-1" / "model", tmp_path / "teacher")
    config = (teacher / "config.json").read_text()
    (teacher / "config.json").write_text(config.replace("B-LOC", "S-LOC"))  # of another scheme
    rows = [{"id": n, "tokens": row["tokens"], "tokens_en": ["x"]} for n, row in enumerate(sentences("de", 9))]
    without_words = {"id": 99, "tokens": [], "tokens_en": ["x"]}
    written = labeled(teacher, [*rows[:3], without_words, *rows[3:]], tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    model = AutoModelForTokenClassification.from_pretrained(teacher)
    assert model.config.label_subword == "first_with_text"
    for row, written_row in zip(rows, written, strict=True):
        assert row.items() <= written_row.items()
        assert len(written_row["labels"]) == len(row["tokens"])
        if len(row["tokens"]) == 5:  # one window
            assert written_row["labels"] == to_iob2(labels_of_words(model, tokenizer, row["tokens"]), "B-TYPE")


def test_run_refuses_labels_of_a_tagger_as_gold(people, people_run, tmp_path, refused):
    rows = labeled(
        people_run / "seed-1" / "model", [{"tokens": row["tokens"]} for row in sentences("de", 12)], tmp_path
    )
    (signature,) = {row["labeled_by"] for row in rows}
    assert signature.startswith("xlm-roberta sha256:")
    assert signature.endswith("fine-tuned on people (zero_shot)")
    table = f"path: {tmp_path}/labeled/de, text_columns: [tokens], label_column: labels, split: train, languages: [de]"
    assert "xlm-roberta sha256:" in refused([*people, f"evaluation=[{{{table}}}]", f"output_dir={tmp_path / 'other'}"])
