"""Trained and tested in one language and domain: which rows, the figures beside the published ones, what is refused."""

import json

import pytest
from datasets import Dataset

from finetuning.experiments.supervised import main, published_of
from finetuning.recipe import Published
from finetuning.results.table import read_results

RECIPE = """
task: reviews
output_dir: nowhere
train:
- path: {folder}/{{language}}
  where: {{domain: "{{domain}}"}}
evaluation:
- path: {folder}/{{language}}
  where: {{domain: "{{domain}}"}}
  languages: [en, ja]
  language_names: {{ja: jp}}
selection: last
max_length: 16
training: {{learning_rate: 1e-3, batch_size: 8, max_steps: 1}}
seeds: [1]
published:
  paper: P
  table: T
  row: R
  languages: {{en dvd: 80.0, ja dvd: 50.0, fr dvd: 10.0}}
  average_over: [en dvd, ja dvd]
  average: 65.0
"""


@pytest.fixture
def reviews(tiny_model, tmp_path):
    """Arguments: reviews of two domains in two languages, train and test, and the output."""
    for language in ("en", "jp"):
        for split, count in (("train", 12), ("test", 8)):
            rows = [
                {"text": f"{split} {number}", "label": ("negative", "positive")[number % 2], "domain": domain}
                for domain, more in (("books", 0), ("dvd", 3))
                for number in range(count + more)
            ]
            folder = tmp_path / "data" / language
            folder.mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_json(folder / f"{split}.jsonl", force_ascii=False)
    config = tmp_path / "recipe.yaml"
    text = RECIPE.format(folder=tmp_path / "data").replace(
        '"{domain}"}\neval', '"{domain}"}\n  language_names: {ja: jp}\neval'
    )
    config.write_text(text, encoding="utf-8")
    return ["--config", str(config), "--output", str(tmp_path / "out"), "--model", f"XLM={tiny_model}"]


@pytest.mark.slow
def test_each_language_and_domain_has_runs_of_its_own(reviews, tmp_path, capsys):
    main([*reviews, "--languages", "en", "ja", "--domains", "dvd"])
    out = tmp_path / "out"
    found = json.loads((out / "supervised.json").read_text(encoding="utf-8"))
    value = {row["cell"]: row["value"] for row in found["scores"]}
    assert list(value) == ["en dvd", "ja dvd"]
    for cell, figure in (("en dvd", 80.0), ("ja dvd", 50.0)):
        run = read_results(out / "XLM" / cell.replace(" ", "-"))
        language, domain = cell.split()
        protocol = run["protocol"]
        assert run["setting"] == "supervised" and list(run.languages) == [language]
        assert (protocol["training_rows"], protocol["evaluated_rows"][language]) == (12 + 3, 8 + 3)
        for entry in (*protocol["training_data"], *protocol["evaluation_data"]):
            assert entry["where"] == {"domain": domain} and entry["path"].endswith({"en": "/en", "ja": "/jp"}[language])
        assert run["published"][0]["figures"] == {"accuracy": {language: figure}}
        assert [value[cell]] == run.languages[language]["scores"]
    page = (out / "supervised.md").read_text(encoding="utf-8")
    assert "| trained and tested on | XLM | P, T, R |" in page
    assert page.count("| 65.0 |") == 1 and page.count("| 80.0 |") == 1 and "10.0 |" not in page
    assert f"| average | {sum(value.values()) / 2:.1f} | 65.0 |" in page
    assert (out / "supervised.png").is_file()
    page = (out / "XLM" / "en-dvd" / "results.md").read_text(encoding="utf-8")
    assert "[domain: dvd] train" in page
    capsys.readouterr()
    main([*reviews, "--languages", "en", "--domains", "dvd"])
    assert "1 finished before, 0 to do" in capsys.readouterr().out
    page = (out / "supervised.md").read_text(encoding="utf-8")
    assert "65.0" not in page, "an average over other cells is not shown"


def test_the_published_average_stands_beside_the_same_cells_alone():
    printed = Published(paper="P", table="T", row="R", languages={"en": 80.0, "de": 60.0, "fr": 10.0}, average=50.0)
    assert published_of(printed, ["de", "en"]) == {"de": 60.0, "en": 80.0}
    assert published_of(printed, ["en", "de", "fr"]) == {**printed.languages, "average": 50.0}
    assert published_of(None, ["en"]) == {}


@pytest.mark.slow
def test_text_without_domains_holds_out_development_rows(reviews, tmp_path):
    """A zero-shot recipe does, as long as its training table names the language."""
    tables = [f"{part}.0.where={{}}" for part in ("train", "evaluation")]
    options = ["selection=source_dev", "dev_fraction=0.25", "seeds=[1]", "published=null"]
    main([*reviews, "--languages", "en", *tables, *options])
    run = read_results(tmp_path / "out" / "XLM" / "en")
    assert run["protocol"]["selection"]["rows"] == {"en": 7} and run["protocol"]["training_rows"] == 20
    assert (tmp_path / "out" / "supervised.json").is_file()


def test_domains_that_say_nothing_are_refused(reviews, tmp_path, capsys):
    def message(*arguments):
        with pytest.raises(SystemExit):
            main([*reviews, *arguments])
        return " ".join(capsys.readouterr().err.split())

    languages = ("--languages", "en", "ja")
    assert "no --domains" in message(*languages)
    plain = [f"{part}.0.where={{}}" for part in ("train", "evaluation")]
    assert "no table of the recipe has {domain}" in message(*languages, "--domains", "books", *plain)
    assert "'music' in column domain" in message(*languages, "--domains", "music")
    assert "setting is another one in each run" in message(*languages, "--domains", "books", "setting=zero_shot")
    wrong = 'train.0.where={area: "{domain}"}'
    assert "no column area" in message(*languages, "--domains", "books", wrong)
    assert not (tmp_path / "out").exists()
