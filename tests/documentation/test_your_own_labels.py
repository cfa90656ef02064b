"""The page "Your own labels" from its first line to its last: files, training, pipeline, card, dry run of the push."""

import csv
import importlib
import io
import itertools
import re
import shlex
import subprocess
from contextlib import redirect_stdout
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
        Path(f"pairs.{language}").write_text("".join(re.search('"text": "(.*?)"', r)[1] + "\n" for r in rows), "utf-8")


def run(command: str) -> str:
    """A command in this process; returns what it prints."""
    forget_accelerate()
    program, first, *arguments = shlex.split(command)
    assert program == "python" and (first == "-m" or Path(first).is_file())
    name = arguments.pop(0) if first == "-m" else first.removesuffix(".py").replace("/", ".")
    with redirect_stdout(io.StringIO()) as out:
        importlib.import_module(name).main(arguments)
    return out.getvalue()


# transformers guesses where words end, which the page explains
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_your_own_labels_leads_from_files_to_a_model_in_use(page_of, place, sample_corpus_dir, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    printed, recipes, answers = {}, {}, []
    for language, block in page_of(PAGE).blocks:
        if language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(block, PAGE, "exec"), {"__name__": "example"})
            answers.append(out.getvalue())
            continue
        subprocess.run(["bash", "-ec", "".join(match[0] for match in FILE.finditer(block))], check=True)
        recipes |= {name: text for name, text in FILE.findall(block) if name.endswith(".yaml")}
        if "reviews.de.csv" in block:
            enlarge(sample_corpus_dir)
        printed |= {command: run(command) for command in FILE.sub("", block).splitlines()}

    story = {name: text for name, text in recipes.items() if name != "names.yaml"}
    assert len(printed) <= 12 and sum(len(text.splitlines()) for text in story.values()) <= 25
    checked = next(text for command, text in printed.items() if "reviews.yaml" in command and "--check_data" in command)
    assert re.search(rf"evaluation\W+de\W+{ROWS}\W+good {ROWS // 3}, fair {ROWS // 3}, bad {ROWS // 3}\W", checked)
    assert LABELS >= set(re.findall(r"'label': '(\w+)'", answers[0])) and "'score'" in answers[0]
    folder = Path("runs/hotels/reviews/seed-1/model")
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text-classification" and card.data.language == ["en", "de"]
    assert all(label in card.text for label in LABELS)
    (listed,) = (text for command, text in printed.items() if "--dry-run" in command)
    assert "model.safetensors" in listed and "README.md" in listed
