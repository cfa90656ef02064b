"""The card of a model folder: checked whole for each model, its figures, its links, and what is refused."""

import itertools
import json
import re
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import XLMRobertaForMaskedLM, XLMRobertaForSequenceClassification

from finetuning.results.table import load_results
from hub_cards import card as card_module
from hub_cards.card import count_parameters, write_card
from hub_cards.sections import duration, markdown

KINDS = ("classification", "retrieval", "word_alignment")
# Of a model with results of three kinds; the example cards are whole ones, held by test_example_cards.py.
LINES = """
> A demonstration that the code runs, not a model for use.
Started from [FacebookAI/xlm-roberta-base](https://huggingface.co/FacebookAI/xlm-roberta-base).
| first | 1,500 | mlm (2,048), tlm (1,024) | 0.0002, linear, 100 warm-up |
| second | 500 | mlm (64); only *crossattention* learn | 0.0001, constant, 0 warm-up |
| en-de | en, de | owner/bitext en-de train | 213 | `8de81da28368` |
- precision bf16, seed 3, language sampling alpha 0.7
- time: 1 h 5 min in 2 sessions
- hardware: 2 cores of A CPU
- code: commit fedcba987654 with uncommitted changes
![Losses and what else was measured while training](provenance/figures/curves.png)
| xnli | accuracy 62.2 ± 1.5† | 28.3 | zero_shot | 3 | 15,030 | 1, 2 |
- aer: lower is better
| de | 72.2 | 56.2 | 31.4 |
| de | 72.2 ± 3.2 | 70.0 | 74.5 | 78.8 |
> - seed 1: accuracy is at chance in sw 33.4 (guessing: 33.3)
- results: [provenance/results/xnli.json](provenance/results/xnli.json)
![xnli, zero_shot](provenance/figures/xnli-scores.png)
| de-en | 1 | 31.4 | 70.2 | 66.1 | 68.1 | 74.5 | 16.63 |
- Evaluated in en, de, sw only; nothing is known of other languages.
Weights: apache-2.0.
"""


def headings(text):
    return re.findall(r"^## (.*)", text, re.MULTILINE)


def body_of(text):
    return text.split("---\n", 2)[2].lstrip("\n")


def test_what_a_card_says(made_up_run):
    folder, files = made_up_run("veco", *KINDS)
    text = write_card(folder, files, repo="me/veco", license="apache-2.0").read_text(encoding="utf-8")
    assert set(LINES.strip().split("\n")) - set(text.split("\n")) == set()
    sections = ["Use", "Results", "How it was trained", "Limits and risks", "Licenses", "Citation", "This card"]
    assert headings(text) == ["When to take it", *sections]
    assert f"{count_parameters(folder):,} parameters, 2 languages (en, de)." in text and "# me/veco\n" in text


def numbers_of(content):
    """All numbers of a results.json, as the tables show them, and those of its texts."""
    found, rest = set(), [content]
    while rest:
        value = rest.pop()
        if isinstance(value, (dict, list)):
            rest += [*value, *value.values()] if isinstance(value, dict) else value
        elif isinstance(value, str):
            found |= set(re.findall(r"\d[\d,.]*\d|\d", value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found |= {f"{value:.1f}", f"{value:.2f}", f"{value:,}", f"{value:g}"}
    return found


def test_every_number_of_the_results_is_in_the_results(made_up_run):
    folder, files = made_up_run("veco", *KINDS, "tagging", "translation")
    text = write_card(folder, files).read_text(encoding="utf-8")
    section = text.partition("## Results")[2].partition("\n## ")[0]
    known = set()
    for file in (folder / "provenance" / "results").glob("*.json"):
        content = json.loads(file.read_text())
        known |= numbers_of(content)
        results = load_results(file)  # means, deviations, average and gap follow from the scores
        places = itertools.product(results.with_average, results.metrics, results.methods, results.layers)
        known |= numbers_of([results.of(*place) for place in places] + list(results.transfer.values()))
        known |= numbers_of([results.chance(name) for name in results.with_average if results.chance(name) is not None])
        # counts that the card sums up or counts: rows, languages, texts that were cut
        rows, cut = content["protocol"]["evaluated_rows"], content["protocol"].get("cut_texts", {})
        known |= {f"{sum(rows.values()):,}", str(len(rows)), str(sum(map(sum, cut.values())) if "de-en" in cut else 0)}
    names = {"ntrex_retrieval", "word_alignment", "xnli", "multi30k", "udpos"}
    shown = re.sub(r"provenance/\S+|accuracy@1|de-en|F1|f1|" + "|".join(names), "", section)
    numbers = set(re.findall(r"\d[\d,.]*\d|\d", shown))
    assert len(numbers) > 50 and numbers <= known


def test_every_link_is_relative_or_on_the_hub(made_up_run):
    folder, files = made_up_run("metaxlm", *KINDS, "tagging")
    text = body_of(write_card(folder, files, repo="me/model", license="mit").read_text(encoding="utf-8"))
    links = re.findall(r"\]\((\S+?)\)", text) + re.findall(r"(?:href|src)=\W*(\S+)", text)
    inside = [link for link in links if "://" not in link]
    assert len(inside) >= 9 and all((folder / link).is_file() and not link.startswith("/") for link in inside)
    outside = {link.split("/")[2] for link in links if "://" in link}
    assert "huggingface.co" in outside and outside <= {"huggingface.co", "sbert.net"}
    assert "http" not in re.sub(r"\]\(\S+?\)", "]", text)


def test_nothing_written_names_this_machine(made_up_run):
    folder, files = made_up_run("xlm_align", *KINDS, "tagging")
    before = {path for path in folder.rglob("*") if path.is_file()}
    write_card(folder, files)
    written = [path for path in folder.rglob("*") if path.is_file() and path not in before]
    assert len(written) > 12
    for path in written:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert str(folder.parent) not in text and "/home/" not in text and "/data/" not in text, path
        assert "is_local" not in text


def test_many_tasks_are_folded(made_up_run):
    folder, files = made_up_run("veco", *KINDS, "tagging")
    text = write_card(folder, files).read_text(encoding="utf-8")
    assert text.count("<details>") == text.count("</details>") == 4 and "### xnli" not in text
    assert "\n\n<details>\n<summary><b>udpos, zero_shot</b>: f1 92.1, mean of 2</summary>\n\n| language" in text
    assert "(lower is better)</summary>\n\n" in text and ".png)\n\n</details>\n" in text  # or they stay Markdown


def test_the_card_is_the_same_from_a_copy_of_the_folder(made_up_run, tmp_path):
    folder, files = made_up_run("ernie_m", *KINDS)
    text = write_card(folder, files, repo="me/model", license="mit").read_text(encoding="utf-8")
    copy = shutil.copytree(folder, tmp_path / "snapshot")
    (copy / "README.md").unlink()
    assert write_card(copy).read_text(encoding="utf-8") == text
    assert write_card(copy, repo="you/model").read_text(encoding="utf-8").count("you/model") > 5


def test_seeds_that_were_run_apart_stand_in_one_table(made_up_run):
    folder, (file,) = made_up_run("xlm_align", "tagging")
    other = json.loads(file.read_text())
    other["seeds"], other["transfer_gap"] = [2], 7.87
    for name, score in (("en", 95.11), ("de", 87.24)):
        other["languages"][name] = other["metrics"]["f1"][name] = {"scores": [score], "mean": score, "sd": None}
    other["average"] = {"scores": [91.175], "mean": 91.175, "sd": None}
    second = file.parent.with_name("second") / "results.json"
    second.parent.mkdir()
    second.write_text(json.dumps(other))
    text = write_card(folder, [file, second]).read_text(encoding="utf-8")
    assert text.count("### udpos, zero_shot") == 1
    assert "| **average** | 91.6 ± 0.6 | 92.1 | 91.2 |" in text and "| de | 87.9 ± 1.0 | 88.6 | 87.2 |" in text
    assert "| gap (en - mean of others) | 7.4 |" in text and "seeds: 1, 2" in text
    assert "[provenance/results/udpos.json](provenance/results/udpos.json), [provenance/results/udpos-2.json]" in text
    other["seeds"] = [1]  # the same seed again is another experiment
    second.write_text(json.dumps(other))
    again = write_card(folder, [second]).read_text(encoding="utf-8")
    assert again.count("### udpos, zero_shot") >= 2


def test_what_is_not_known_is_left_out(small_model, tmp_path):
    text = write_card(small_model(tmp_path / "model")).read_text(encoding="utf-8")
    for section in ("## When", "## How it", "## Results", "## Licenses", "## Citation", "Paper:", "None", "{{", "{%"):
        assert section not in text
    assert headings(text) == ["Use", "Limits and risks", "This card"]
    assert "\n\n\n" not in re.sub(r"```.*?```", "code", text, flags=re.DOTALL)
    assert "No results are recorded" in text


def test_an_encoder_of_another_architecture_is_told(zoo_model_dir):
    text = write_card(zoo_model_dir("xlm_align on modernbert", copy=True)).read_text(encoding="utf-8")
    assert "`xlm_align`, of modernbert's architecture: 2 layers of 32" in text
    assert "at most 8192 tokens" in text


def test_a_fine_tuned_model(small_model, made_up_run, tmp_path):
    base, (file,) = made_up_run("xlm_align", "classification")
    run = shutil.copytree(file.parent, tmp_path / "tuned")
    (run / "recipe.yaml").write_text("output_dir: tuned\n")
    content = json.loads((run / "results.json").read_text())
    content["model"]["folder"] = "elsewhere/model"
    (run / "results.json").write_text(json.dumps(content))
    labels = dict(id2label={0: "no", 1: "yes"}, fine_tuned_on=["xnli (zero_shot)"])
    folder = small_model(run / "seed-1" / "model", XLMRobertaForSequenceClassification, **labels)
    text = write_card(folder).read_text(encoding="utf-8")  # the results of its own run are found
    assert write_card(folder, [run]).read_text(encoding="utf-8") == text
    data = ModelCard(text).data
    assert data.pipeline_tag == "text-classification" and data.model_name == "tuned" and data.base_model is None
    assert data.datasets == ["nyu-mll/multi_nli"] and data.language == ["en", "de", "sw"]  # trained and scored in
    first = """
- Task: text classification, fine-tuned on xnli (zero_shot)
- Labels: no, yes
- Trained in: en (392,702 rows)
- Scored in: en, de, sw (accuracy 62.2 ± 1.5, mean of 3)
- Base model: `elsewhere`
"""
    assert body_of(text).startswith(f"# tuned\n{first}")
    order = ["Use", "Results", "How it was fine-tuned", "The base model", "Limits and risks"]
    assert headings(text)[:5] == order and text.count("```python") == 1
    assert "- xnli, zero_shot: batch size 32, learning rate 2e-05, epochs 3\n" in text
    assert "these weights are of seed 1; the scores above are means over seeds 1, 2" in text

    # where the base is in its place, what is known of it is collected too
    write_card(base, repo="me/base", license="mit")
    content["model"]["folder"] = "xlm_align-made-up/model"
    (run / "results.json").write_text(json.dumps(content))
    text = write_card(folder).read_text(encoding="utf-8")
    data = ModelCard(text).data
    assert (data.base_model, data.base_model_relation) == ("me/base", "finetune")
    assert data.datasets == ["owner/text", "owner/bitext", "nyu-mll/multi_nli"]
    assert "- Base model: [me/base](https://huggingface.co/me/base)\n" in text
    of_base = text.partition("## The base model")[2].partition("\n## ")[0]
    assert "Started from [FacebookAI/xlm-roberta-base]" in of_base and "| first | 1,500 |" in of_base
    assert "provenance/figures/curves.png" in of_base and "| en-de | en, de |" in of_base
    shutil.rmtree(base)
    assert write_card(folder).read_text(encoding="utf-8") == text
    again = shutil.copytree(folder, tmp_path / "again")  # no results.json above it any more
    (again / "README.md").unlink()
    assert write_card(again).read_text(encoding="utf-8") == text


def test_a_start_that_is_no_model_of_the_hub(made_up_run):
    folder, _ = made_up_run("metaxlm")
    recipe = folder.parent / "recipe.yaml"
    local = str(folder.parent / "elsewhere" / "model")
    recipe.write_text(recipe.read_text().replace("FacebookAI/xlm-roberta-base", local))
    text = write_card(folder).read_text(encoding="utf-8")
    assert ModelCard(text).data.base_model is None
    assert "Started from `elsewhere`." in text and str(folder.parent) not in text
    content = yaml.safe_load(recipe.read_text())
    start = {"initialize": "both", "path": local, "rows": "matched", "dictionaries": [{"language": "sw"}]}
    content["model"] = {"type": "metaxlm", "start_from": None, "meta_pretrained": start}
    recipe.write_text(yaml.safe_dump(content))
    text = write_card(folder).read_text(encoding="utf-8")
    assert "Started from `elsewhere` (body and embeddings, rows matched, with dictionaries of sw)." in text


def test_the_base_model_may_be_named_where_the_recipe_has_a_copy(made_up_run):
    folder, _ = made_up_run("xlm_align")
    recipe = folder.parent / "recipe.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["model"]["start_from"] = "/data/minilm"
    recipe.write_text(yaml.safe_dump(content))
    write_card(folder, base_model="microsoft/MiniLM")
    text = write_card(folder).read_text(encoding="utf-8")  # it is remembered
    assert ModelCard(text).data.base_model == "microsoft/MiniLM"
    assert "Started from [microsoft/MiniLM](https://huggingface.co/microsoft/MiniLM).\n" in text
    content["model"]["start_from"] = None
    recipe.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="--base-model"):
        write_card(folder)


def test_names_are_shown_as_they_are(made_up_run):
    folder, files = made_up_run("veco", *KINDS, "tagging")
    content = json.loads(files[0].read_text())
    content["task"], content["warnings"] = "a|b <i>*x* [y](z)", ["a `tag` <s>"]
    content["protocol"]["evaluation_data"][0]["path"] = "local/<b>"
    files[0].write_text(json.dumps(content))
    text = write_card(folder, files).read_text(encoding="utf-8")
    assert "<summary><b>a|b &lt;i&gt;*x* [y](z), zero_shot</b>" in text
    assert (
        "> - a \\`tag\\` \\<s>" in text
        and "![a|b \\<i>\\*x\\* [y\\](z), zero_shot](provenance/figures/a-b-i-x-y-z-" in text
    )
    outside = re.sub(r"```.*?```|^---.*?^---", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)<(i|s|b)>(?!a\|b|ntrex|word|udpos)", outside)


def test_a_foreign_model_has_no_code_here(small_model, tmp_path):
    folder = small_model(tmp_path / "model")
    text = write_card(folder).read_text(encoding="utf-8")
    assert "code is in this repository" not in text and "1 layer of 16, 2 heads" in text
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "## Use" in write_card(folder, overwrite=True).read_text(encoding="utf-8")  # other weights: a new record


def test_the_license_table_says_all_that_data_was_used_for(made_up_run):
    folder, (file,) = made_up_run("veco", "classification")
    content = json.loads(file.read_text())
    content["protocol"]["evaluation_data"][0]["path"] = "owner/text"
    file.write_text(json.dumps(content))
    text = write_card(folder, [file]).read_text(encoding="utf-8")
    assert "(https://huggingface.co/datasets/owner/text) | training, evaluation |" in text


def test_only_what_an_objective_reads_was_learned_from(made_up_run):
    folder, _ = made_up_run("xlm_align")
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("tlm:", "kd:"))
    text = write_card(folder).read_text(encoding="utf-8")
    assert "- measured on, not learned from: en-de\n" in text and "| en-de |" not in text
    assert ModelCard(text).data.datasets == ["owner/text"]


def test_parameters_are_counted_without_reading_them(small_model, tmp_path, monkeypatch):
    folder = small_model(tmp_path / "model")
    model = XLMRobertaForMaskedLM.from_pretrained(folder)
    assert count_parameters(folder) == sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(card_module, "count_parameters", lambda folder: 278_000_000)
    assert "emonstration" not in write_card(folder).read_text(encoding="utf-8")


def test_tables_for_markdown():
    assert markdown(["a|b"], [["<s>"]]) == "| a\\|b |\n| --- |\n| \\<s> |"
    text = markdown(["a", "b", "c", "d"], [["x|y", "1.5 ± 0.2", "", "1, 2 warm-up"], ["z", "", "", "2"]])
    assert text == "| a | b | d |\n| --- | ---: | --- |\n| x\\|y | 1.5 ± 0.2 | 1, 2 warm-up |\n| z |  | 2 |"
    assert markdown(["a"], []) == ""


def test_durations():
    assert [duration(s) for s in (0.2, 59.6, 939.4, 3600, 7503)] == ["0 s", "1 min", "15 min 39 s", "1 h", "2 h 5 min"]
