"""Rows of words and of questions as recipes of tagging and question answering read them."""

import json

import yaml

ANSWERS = "text_columns: [question, context], label_column: answers"
WORDS = "text_columns: [tokens], label_column: ner_tags"
NAMES = {"en": ["Anna", "Bob", "Clara"], "de": ["Dora", "Emil", "Franz"]}


def sentences(language, count):
    """Somebody goes somewhere; every fourth sentence is longer than a window."""
    rows = []
    for number in range(count):
        name = NAMES[language][number % 3]
        city = ("Rome", "Paris")[number % 2]
        words = [name, "Smith", "went", "to", city]
        tags = ["B-PER", "I-PER", "O", "O", "B-LOC"]
        if number % 4 == 0:
            words *= 4
            tags *= 4
        rows.append({"tokens": words, "ner_tags": tags})
    return rows


def write_rows(path, rows):
    """Writes a JSON line a row; returns the path."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path):
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_configs(folder, configs):
    """A dataset in the Hub's layout, of {configuration: {split: rows}}; returns its path."""
    listed = []
    for name, splits in configs.items():
        (folder / name).mkdir(parents=True)
        files = [{"split": split, "path": f"{name}/{split}.jsonl"} for split in splits]
        listed.append({"config_name": name, "data_files": files})
        for split, rows in splits.items():
            write_rows(folder / name / f"{split}.jsonl", rows)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': listed})}---\n", encoding="utf-8")
    return str(folder)


def row_of(question, context, *answers):
    starts = [context.find(answer) for answer in answers]
    return {"question": question, "context": context, "answers": {"text": list(answers), "answer_start": starts}}
