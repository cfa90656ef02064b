"""The page "Your own labels" from its first line to its last: files, training, pipeline, card, dry run of the push."""

import csv
import importlib
import io
import itertools
import json
import re
import shlex
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tests.conftest import forget_accelerate

PAGE = "finetuning/your_own_labels.md"
FILE = re.compile(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF\n", re.MULTILINE | re.DOTALL)
LABELS = {"good", "fair", "bad"}
ROWS = 300


def enlarge(sample_corpus: Path) -> None:
    """Gives the reader of the page more to test on, and more translations."""
    with open("reviews.de.csv", encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    with open("reviews.de.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *itertools.islice(itertools.cycle(rows), ROWS)])
    for language in ("en", "de"):
        rows = (sample_corpus / language / "train.jsonl").read_text(encoding="utf-8").splitlines()
        lines = [json.loads(row)["text"] + "\n" for row in rows]
        Path(f"pairs.{language}").write_text("".join(lines), encoding="utf-8")


def run(command: str) -> str:
    """A command in this process; returns what it prints."""
    forget_accelerate()
    program, first, *arguments = shlex.split(command)
    assert program == "python"
    if first == "-m":
        name = arguments.pop(0)
    else:
        assert Path(first).is_file()
        name = first.removesuffix(".py").replace("/", ".")
    with redirect_stdout(io.StringIO()) as out:
        importlib.import_module(name).main(arguments)
    return out.getvalue()


@dataclass
class Reading:
    """What a reader sees and writes: what commands print, the recipes by file, and what the Python blocks print."""

    printed: dict[str, str] = field(default_factory=dict)
    recipes: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def follow(self, language: str, block: str, sample_corpus: Path) -> None:
        if language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(block, PAGE, "exec"), {"__name__": "example"})
            self.answers.append(out.getvalue())
            return
        subprocess.run(["bash", "-ec", "".join(match[0] for match in FILE.finditer(block))], check=True)
        self.recipes |= {name: text for name, text in FILE.findall(block) if name.endswith(".yaml")}
        if "reviews.de.csv" in block:
            enlarge(sample_corpus)
        for command in FILE.sub("", block).splitlines():
            self.printed[command] = run(command)

    def output_of(self, *words: str) -> str:
        """What the command with these words prints."""
        [command] = [command for command in self.printed if set(words) <= set(shlex.split(command))]
        return self.printed[command]


# transformers guesses where words end, which the page explains
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_your_own_labels_leads_from_files_to_a_model_in_use(page_of, working_folder, sample_corpus_dir, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    reading = Reading()
    for language, block in page_of(PAGE).blocks:
        reading.follow(language, block, sample_corpus_dir)

    assert len(reading.printed) <= 12
    lines = [text.count("\n") for name, text in reading.recipes.items() if name != "names.yaml"]
    assert sum(lines) <= 25
    third = ROWS // 3
    counts = rf"evaluation\W+de\W+{ROWS}\W+good {third}, fair {third}, bad {third}\W"
    assert re.search(counts, reading.output_of("reviews.yaml", "--check_data"))
    assert LABELS >= set(re.findall(r"'label': '(\w+)'", reading.answers[0]))
    assert "'score'" in reading.answers[0]
    card = ModelCard.load(Path("runs/hotels/reviews/seed-1/model/README.md"))
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.language == ["en", "de"]
    for label in LABELS:
        assert label in card.text
    listed = reading.output_of("--dry-run")
    assert "model.safetensors" in listed
    assert "README.md" in listed
