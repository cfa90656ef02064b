"""XTREME's published translations to the rows that recipes read; unreadable files and rows."""

import json

from finetuning.tools.translations import main

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
    published(given, "PAWSX/translate-test/test-de-en-translated.tsv", PAWS)
    for name in (
        "SQuAD/translate-train/squad.translate.train.en-de", "SQuAD/translate-dev/squad.translate.dev.en-de",
        "TyDiQA-GoldP/translate-train/tydiqa.translate.train.en-sw", "MLQA/translate-test/mlqa.translate.test.ar-en",
        "TyDiQA-GoldP/translate-test/tydiqa.translate.test.sw-en", "XQuAD/translate-test/xquad.translate.test.zh-en",
        "XQuAD/pseudo-test/xquad.translate.test.yo-en",  # which is not read
    ):  # fmt: skip
        published(given, f"{name}.json", squad(("q1", "Was ist alt?", [("Rom", 0)])))
    convert(given, out)
    names = "mlqa/ar/test pawsx/de/test pawsx/ja/train squad/de/train squad/de/validation tydiqa/sw/train "
    names += "tydiqa/sw/validation xnli/de/train xnli/zh/test xquad/zh/validation"
    assert sorted(str(file.relative_to(out).with_suffix("")) for file in out.rglob("*.jsonl")) == names.split()
    # translate-train: the English is the original; translate-test: the translation
    english = {"premise_en": "They left.", "hypothesis_en": "They stayed.", "label": "contradiction"}
    german = {"premise": "Sie gingen.", "hypothesis": "Sie blieben."}
    assert rows(out / "xnli/de/train.jsonl")[0] == german | english
    (row,) = rows(out / "xnli/zh/test.jsonl")
    assert [row[name] for name in ("premise", "premise_en", "label")] == ["前", "before", "entailment"]
    quoted = rows(out / "pawsx/ja/train.jsonl")
    assert [row["sentence1_en"] for row in quoted] == ['He said "a".', '"']  # a quotation mark quotes nothing
    assert [row["label"] for row in quoted] == [1, 0]
    assert rows(out / "pawsx/de/test.jsonl")[0]["sentence1"] == 'He said "a".'
    answers = {"text": ["Rom"], "answer_start": [0]}
    (row,) = rows(out / "squad/de/train.jsonl")
    assert row == {"id": "q1", "question": "Was ist alt?", "context": "Rom ist alt.", "answers": answers}
    (row,) = rows(out / "xquad/zh/validation.jsonl")
    assert row == {"id": "q1", "question_en": "Was ist alt?", "context_en": "Rom ist alt.", "answers_en": answers}


def test_convert_leaves_out_malformed_rows_and_overwrites_nothing(tmp_path, capsys):
    lines = [*PAWS, "a\tb\tä\tß", "a\tb\tä\tß\tä", "a\t \tä\tß\t1", *PAWS * 2]
    published(tmp_path / "in", "PAWSX/en-fr-translated.tsv", lines)
    mine = published(tmp_path / "out", "pawsx/de/train.jsonl", "mine\n")
    published(tmp_path / "in", "PAWSX/en-de-translated.tsv", PAWS)
    rome = [("Rom", 0)]
    asked = [
        ("q1", "Was?", rome),
        ("q1", "Was?", rome),
        ("q2", " ", rome),
        ("q3", "Was?", []),
        ("q4", "Was?", [("", 0)]),
    ]
    published(
        tmp_path / "in",
        "squad.translate.train.en-de.json",
        squad(*asked, *((f"r{n}", "Was?", [("Rom", -1)]) for n in range(5))),
    )
    convert(tmp_path / "in", tmp_path / "out")
    assert len(rows(tmp_path / "out/pawsx/fr/train.jsonl")) == 6 and "not 5': 1" in capsys.readouterr().out
    assert [row["id"] for row in rows(tmp_path / "out/squad/de/train.jsonl")] == ["q1", *(f"r{n}" for n in range(5))]
    assert mine.read_text() == "mine\n"
