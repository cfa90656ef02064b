"""The card of a model folder: its numbers, its links, and what the cards of test_example_cards.py do not show."""

import itertools
import json
import re
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import XLMRobertaForMaskedLM, XLMRobertaForSequenceClassification

from finetuning.page import references_of
from finetuning.results import load_results
from hub_cards import card as card_module
from hub_cards.card import count_parameters, write_card
from hub_cards.sections import markdown

KINDS = ("classification", "retrieval", "word_alignment")


def headings(text):
    return re.findall(r"^## (.*)", text, re.MULTILINE)


def body_of(text):
    return text.split("---\n", 2)[2].lstrip("\n")


def test_a_run_of_several_sessions_and_phases(made_up_run):
    folder, _ = made_up_run("veco")
    text = write_card(folder).read_text(encoding="utf-8")
    trained = text.partition("## How it was trained")[2].partition("\n## ")[0]
    for fact in ("tlm (1,024)", "dwa", "only `*crossattention*`", "0.0001, constant", "1 h 5 min in 2 sessions"):
        assert fact in trained
    assert "fedcba987654 with uncommitted" in trained and "012345" not in trained


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
        known |= numbers_of([vars(reference) for _, reference in references_of(results)])
        # counts that the card sums up or counts: rows, languages, texts that were cut
        rows, cut = content["protocol"]["evaluated_rows"], content["protocol"].get("cut_texts", {})
        known |= {f"{sum(rows.values()):,}", str(len(rows)), str(sum(map(sum, cut.values())) if "de-en" in cut else 0)}
    names = {"ntrex_retrieval", "word_alignment", "xnli", "multi30k", "udpos"}
    shown = re.sub(r"provenance/\S+|accuracy@1|de-en|F1|f1|" + "|".join(names), "", section)
    numbers = set(re.findall(r"\d[\d,.]*\d|\d", shown))
    assert len(numbers) > 35 and numbers <= known


def test_every_link_is_relative_or_on_the_hub(made_up_run):
    folder, files = made_up_run("metaxlm", *KINDS, "tagging")
    text = body_of(write_card(folder, files, repo="me/model", license="mit").read_text(encoding="utf-8"))
    links = re.findall(r"\]\((\S+?)\)", text) + re.findall(r"(?:href|src)=\W*(\S+)", text)
    inside = [link for link in links if "://" not in link]
    assert len(inside) >= 9 and all((folder / link).is_file() and not link.startswith("/") for link in inside)
    outside = {link.split("/")[2] for link in links if "://" in link}
    assert "huggingface.co" in outside and outside <= {"huggingface.co", "sbert.net"}
    assert "http" not in re.sub(r"\]\(\S+?\)", "]", text)


def test_the_card_is_the_same_from_a_copy_of_the_folder(made_up_run, tmp_path):
    folder, files = made_up_run("ernie_m", *KINDS)
    text = write_card(folder, files, repo="me/model", license="mit").read_text(encoding="utf-8")
    copy = shutil.copytree(folder, tmp_path / "snapshot")
    (copy / "README.md").unlink()
    assert write_card(copy).read_text(encoding="utf-8") == text
    assert write_card(copy, repo="you/model").read_text(encoding="utf-8").count("you/model") > 5


def test_seeds_of_separate_runs_share_a_table(made_up_run):
    folder, (file,) = made_up_run("xlm_align", "tagging")
    other = json.loads(file.read_text())
    other["seeds"] = [2]
    for row, score in zip(other["scores"], (95.11, 87.24), strict=True):
        row |= {"seed": 2, "value": score}
    second = file.parent.with_name("second") / "results.json"
    second.parent.mkdir()
    second.write_text(json.dumps(other))
    text = write_card(folder, [file, second]).read_text(encoding="utf-8")
    assert text.count("<b>udpos, zero-shot</b>") == 1
    assert "| 91.6 ± 0.6 | 92.1 | 91.2 |" in text and "| 87.9 ± 1.0 | 88.6 | 87.2 |" in text and "| 7.4 |" in text
    assert all(f"](provenance/results/{name}.json)" in text for name in ("udpos", "udpos-2"))
    other["seeds"] = [1]  # the same seed again is another experiment
    other["scores"] = [{**row, "seed": 1} for row in other["scores"]]
    second.write_text(json.dumps(other))
    again = write_card(folder, [second]).read_text(encoding="utf-8")
    assert again.count("<b>udpos, zero-shot</b>") >= 2


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
    head = body_of(text).partition("\n## ")[0]
    facts = ("# tuned\n", "xnli (zero_shot)", "no, yes", "en (392,702 rows)", "62.2 ± 1.5, mean of 3", "`elsewhere`")
    assert all(fact in head for fact in facts) and text.count("```python") == 1
    order = ["Scores", "Use", "Results", "How it was fine-tuned", "The base model", "Limits and risks"]
    assert headings(text)[:6] == order
    tuning = text.partition("## How it was fine-tuned")[2].partition("\n## ")[0]
    assert all(fact in tuning for fact in ("batch size 32", "learning rate 2e-05", "epochs 3", "seed 1", "seeds 1, 2"))

    # where the base is in its place, what is known of it is collected too
    write_card(base, repo="me/base", license="mit")
    content["model"]["folder"] = "xlm_align-made-up/model"
    (run / "results.json").write_text(json.dumps(content))
    text = write_card(folder).read_text(encoding="utf-8")
    data = ModelCard(text).data
    assert (data.base_model, data.base_model_relation) == ("me/base", "finetune")
    assert data.datasets == ["owner/text", "owner/bitext", "nyu-mll/multi_nli"]
    assert "[me/base](https://huggingface.co/me/base)" in text
    of_base = text.partition("## The base model")[2].partition("\n## ")[0]
    assert all(fact in of_base for fact in ("[FacebookAI/xlm-roberta-base]", "1,500", "curves.png)", "| en-de |"))
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
    assert "starting from `elsewhere`." in text and str(folder.parent) not in text
    content = yaml.safe_load(recipe.read_text())
    start = {"initialize": "both", "path": local, "rows": "matched", "dictionaries": [{"language": "sw"}]}
    content["model"] = {"type": "metaxlm", "start_from": None, "meta_pretrained": start}
    recipe.write_text(yaml.safe_dump(content))
    text = write_card(folder).read_text(encoding="utf-8")
    assert "from elsewhere**: layers and embeddings, rows of embeddings: matched, with dictionaries of sw" in text


def test_the_base_model_may_be_named_where_the_recipe_has_a_copy(made_up_run):
    folder, _ = made_up_run("xlm_align")
    recipe = folder.parent / "recipe.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["model"]["start_from"] = "/data/minilm"
    recipe.write_text(yaml.safe_dump(content))
    write_card(folder, base_model="microsoft/MiniLM")
    text = write_card(folder).read_text(encoding="utf-8")  # it is remembered
    assert ModelCard(text).data.base_model == "microsoft/MiniLM"
    assert "[microsoft/MiniLM](https://huggingface.co/microsoft/MiniLM)" in text
    content["model"]["start_from"] = None
    recipe.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="--base-model"):
        write_card(folder)


def test_names_are_shown_as_they_are(made_up_run):
    folder, files = made_up_run("veco", *KINDS, "tagging")
    content = json.loads(files[0].read_text())
    content["task"], content["warnings"] = "a|b <i>*x* [y](z)", ["a `tag` <s>"]
    content["published"] = []  # the row is of another task
    content["protocol"]["evaluation_data"][0]["path"] = "local/<b>"
    files[0].write_text(json.dumps(content))
    text = write_card(folder, files).read_text(encoding="utf-8")
    assert "<b>a|b &lt;i&gt;*x* [y](z), zero-shot</b>" in text and "> - a \\`tag\\` \\<s>" in text
    assert "![a|b \\<i>\\*x\\* [y\\](z), zero-shot](provenance/figures/a-b-i-x-y-z-" in text
    outside = re.sub(r"```.*?```|^---.*?^---", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)<(i|s|b)>(?!a\|b|ntrex|word|udpos)", outside)


def test_what_is_not_known_is_left_out(small_model, tmp_path):
    folder = small_model(tmp_path / "model")
    text = write_card(folder).read_text(encoding="utf-8")
    assert headings(text) == ["Use", "Limits and risks", "This card"] and "1 layer of width 16" in text
    assert not re.search("Paper:|None|code is in this repository", text)
    assert "{" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
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
    assert "only for measurements during training**: en-de" in text and "| en-de |" not in text
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
