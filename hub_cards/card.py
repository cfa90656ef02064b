"""Writes the model card, README.md, into a model folder, from what the runs wrote down.

    python -m hub_cards.card --model runs/xlm_align/model --results runs/xlm_align/xnli/results.json

Everything in the card is read from config.json and the weights, from recipe.yaml and run.json of the pre-training run
(the folder above, or --run) and from the results; what is not written down there is left out.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import safe_open

from common.provenance import folder_fingerprint
from common.recipes import read_yaml
from common.tables import HUB_ID
from finetuning.compare import MODULES
from finetuning.result_files import run_name
from finetuning.results import setting_name

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "<!-- written by hub_cards.card, "  # with a hash of the rest: an edited card is somebody's work
AUTO_CLASSES = {  # what the card shows how to use; other heads are used for their hidden states
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
DEMONSTRATION_PARAMETERS = 20_000_000  # below, a checkpoint shows that the code runs

PAPERS = {
    "veco": "[VECO: Variable and Flexible Cross-lingual Pre-training for Language Understanding and Generation]"
    "(https://arxiv.org/abs/2010.16046)",
    "ernie_m": "[ERNIE-M: Enhanced Multilingual Representation by Aligning Cross-lingual Semantics with Monolingual "
    "Corpora](https://arxiv.org/abs/2012.15674)",
    "xlm_align": "[Improving Pretrained Cross-Lingual Language Models via Self-Labeled Word Alignment]"
    "(https://arxiv.org/abs/2106.06381)",
    "metaxlm": "[Cross-Lingual Language Model Meta-Pretraining](https://arxiv.org/abs/2109.11129)",
}
# kind of task -> the Hub's name for it
TASK_TYPES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "question_answering": "question-answering",
    "translation": "translation",
    "word_alignment": "word-alignment",
    "retrieval": "sentence-similarity",
    "mining": "sentence-similarity",
}
PIPELINES = {  # of the class that was saved; what is not here is used for its hidden states
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "translation",
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",  # it has the same head
}


def write_card(
    model_dir: str,
    results_files: list[str],
    run_dir: str | None = None,
    repo: str | None = None,
    licence: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Renders README.md into `model_dir` and returns its path.

    Raises ValueError for a folder without model, a results file that is missing or not of this model, and for a
    README.md that was not written here, or was edited since, without `overwrite`.
    """
    folder = Path(model_dir)
    fingerprint = folder_fingerprint(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    results = [_read_results(Path(path), folder, fingerprint) for path in results_files]
    recipe, run = _pretraining(folder, run_dir, fingerprint)
    target = folder / "README.md"
    if target.exists() and not overwrite:
        _refuse_to_lose(target)

    data = card_data(config, recipe, run, results, repo or run_name(folder), licence)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=False)
    values = card_values(config, count_parameters(folder), recipe, run, results)
    values |= {"name": data.model_name, "repo": repo or "path/to/this/folder"}
    body = environment.get_template("card.md.jinja").render(**values)
    card = ModelCard(f"---\n{data}\n---\n\n{body}")
    text = str(card).rstrip() + "\n"
    text += f"\n{MARKER}{_hash(text)} -->\n"
    aside = target.with_name(".README.md.tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, target)
    return target


def card_data(
    config: dict, recipe: dict, run: dict, results: list[dict], name: str, licence: str | None
) -> ModelCardData:
    """The metadata that the Hub reads; what is not known is not there."""
    languages = [code for corpus in run.get("corpora", []) for code in corpus["languages"]]
    translated = [result for result in results if result["kind"] == "translation"]
    languages += [result[side] for result in translated for side in ("source_language", "target_language")]
    tables = [table for corpus in run.get("corpora", []) for table in corpus["tables"]]
    tables += [table for result in results for table in result["protocol"]["training_data"]]
    datasets = dict.fromkeys(table["path"] for table in tables if _is_hub_id(table["path"]))
    base = _start(recipe)
    return ModelCardData(
        model_name=name,
        language=list(dict.fromkeys(languages)) or None,
        license=licence,
        library_name="transformers",
        tags=[config["model_type"], "cross-lingual"],
        base_model=base if base and _is_hub_id(base) else None,
        pipeline_tag=_pipeline(config),
        datasets=list(datasets) or None,
        metrics=list(dict.fromkeys(result["protocol"]["metric"]["name"] for result in results)) or None,
        eval_results=[entry for result in results for entry in _eval_results(result)] or None,
    )


def _start(recipe: dict) -> str:
    """The checkpoint that pre-training took weights from, as the recipe names it; empty for random weights."""
    model = recipe.get("model", {})
    meta_pretrained = model.get("meta_pretrained") or {}
    if meta_pretrained.get("initialize") == "none":  # the baseline takes its shape alone
        meta_pretrained = {}
    return model.get("start_from") or meta_pretrained.get("path") or ""


def _carried_over(recipe: dict) -> str:
    """What a model with a vocabulary of its own took over from another's; empty for other starts."""
    start = recipe.get("model", {}).get("meta_pretrained")
    if not start or start["initialize"] == "none":
        return ""
    parts = {"both": "body and embeddings", "body": "body", "embeddings": "embeddings"}[start["initialize"]]
    if start["initialize"] == "body":
        return parts
    rows = f"rows {start['rows']}"
    languages = list(dict.fromkeys(dictionary["language"] for dictionary in start["dictionaries"]))
    return f"{parts}, {rows}" + (f", with dictionaries of {', '.join(languages)}" if languages else "")


def _eval_results(result: dict[str, Any]) -> list[EvalResult]:
    """One entry a language, and the average of several: means over seeds, in percent.

    The Hub groups entries by task, dataset, configuration and split, so the language is in the metric's name.
    """
    protocol, entries = result["protocol"], []
    metric = protocol["metric"]["name"]
    seeds = f"{len(result['seeds'])} seed{'s' if result['seeds'][1:] else ''}"
    tables = {language: table for table in protocol["evaluation_data"] for language in table["languages"]}
    configs = {table["config"] for table in protocol["evaluation_data"]}
    average = {**protocol["evaluation_data"][0], "config": configs.pop() if len(configs) == 1 else None}
    several = {"average": result["average"]} if len(result["languages"]) > 1 else {}
    for name, entry in {**result["languages"], **several}.items():
        table = tables.get(name, average)
        entries.append(
            EvalResult(
                task_type=TASK_TYPES[result["kind"]],
                dataset_type=_name(table["path"]),
                dataset_name=result["task"],
                dataset_config=table["config"],
                dataset_split=table["split"],
                metric_type=metric,
                metric_name=f"{metric}, {name}, {setting_name(result)}, {seeds}",
                metric_value=round(entry["mean"], 2),
            )
        )
    return entries


def card_values(config: dict, parameters: int, recipe: dict, run: dict, results: list[dict]) -> dict[str, Any]:
    """What the template shows; empty lists and strings where nothing is known."""
    head = next((name for name in PIPELINES if config["architectures"][0].endswith(name)), "")
    shape = f"{config['num_hidden_layers']} layers of {config['hidden_size']}, {config['num_attention_heads']} heads"
    limits = []
    if parameters < DEMONSTRATION_PARAMETERS:
        limits.append(
            f"This model has {parameters:,} parameters. It is a demonstration that the code runs, not a model for use."
        )
    evaluated = list(dict.fromkeys(language for result in results for language in result["languages"]))
    if evaluated:
        limits.append(f"Evaluated in {', '.join(evaluated)} only; nothing is known of other languages.")
    else:
        limits.append("No results are recorded for this checkpoint.")
    return {
        "config": config,
        "summary": f"`{config['model_type']}`: {shape}, {config['vocab_size']:,} pieces, {parameters:,} parameters.",
        "paper": PAPERS.get(config["model_type"], ""),
        "auto_class": AUTO_CLASSES.get(head, "AutoModel"),
        "fine_tuned_on": config.get("fine_tuned_on", []),
        "start_from": _name(_start(recipe)),
        "carried_over": _carried_over(recipe),
        "phases": [_phase(phase) for phase in recipe.get("phases", [])],
        "corpora": [_corpus(corpus) for corpus in run.get("corpora", [])],
        "facts": _facts(recipe, run),
        "results": [
            {
                "task": result["task"],
                "setting": setting_name(result),
                "table": _with_rule(*MODULES[result["kind"]].score_table(result)),
                "protocol": MODULES[result["kind"]].protocol_lines(result, with_model=False),
                "warnings": result["warnings"],
            }
            for result in results
        ],
        "limits": limits,
    }


def _phase(phase: dict[str, Any]) -> dict[str, str]:
    sizes = {name: objective["batch_size"] for name, objective in phase["objectives"].items()}
    objectives = [f"{name} ({size})" if size else name for name, size in sizes.items()]  # dwa has the rows of tlm
    rate = f"{phase['learning_rate']:g}, {phase['schedule']}, {phase['warmup_steps']} warm-up"
    return {
        "name": phase["name"],
        "steps": f"{phase['steps']:,}",
        "objectives": ", ".join(objectives),
        "learning_rate": rate,
    }


def _corpus(corpus: dict[str, Any]) -> dict[str, str]:
    sources = dict.fromkeys(
        " ".join(filter(None, (_name(t["path"]), t.get("config"), t["split"]))) for t in corpus["tables"]
    )
    size = f"{corpus['size']:,}" if isinstance(corpus.get("size"), int) else ""
    languages = ", ".join(corpus["languages"])
    return {"name": corpus["name"], "languages": languages, "source": "; ".join(sources), "size": size}


def _facts(recipe: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Arithmetic, seed, hardware and versions of the pre-training run, as far as they are recorded."""
    facts = []
    if recipe:
        facts.append(
            f"precision {recipe['precision']}, seed {recipe['seed']}, language sampling alpha {recipe['alpha']}"
        )
    for session in run.get("sessions", [])[-1:]:
        hardware, versions = session["hardware"], session["versions"]
        devices = (
            ", ".join(gpu["name"] for gpu in hardware["gpus"]) or f"{hardware['cores']} cores of {hardware['cpu']}"
        )
        facts.append(f"hardware: {devices}; {hardware['processes']} process(es)")
        facts.append(f"torch {versions['torch']}, transformers {versions['transformers']}")
        if session["git"]:
            changed = " with uncommitted changes" if session["git"]["dirty"] else ""
            facts.append(f"code: commit {session['git']['commit'][:12]}{changed}")
    return facts


def _with_rule(columns: list[str], rows: list[list[str]]) -> list[list[str]]:
    return [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]


def _pipeline(config: dict[str, Any]) -> str:
    head = next((task for name, task in PIPELINES.items() if config["architectures"][0].endswith(name)), None)
    return head or "feature-extraction"


def count_parameters(folder: Path) -> int:
    """Parameters in the weights of a model folder, tied ones once; the tensors themselves are not read."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as weights:
            for name in weights.keys():
                size = 1
                for length in weights.get_slice(name).get_shape():
                    size *= length
                total += size
    return total


def _pretraining(folder: Path, run_dir: str | None, fingerprint: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """recipe.yaml and run.json of the run that made the model; empty where there are none."""
    run_folder = Path(run_dir) if run_dir else folder.resolve().parent
    recipe = read_yaml(run_folder / "recipe.yaml") if (run_folder / "recipe.yaml").is_file() else {}
    if "phases" not in recipe:
        if run_dir:
            raise ValueError(
                f"{run_folder} is not the folder of a pre-training run: it has no recipe.yaml with phases. The card "
                "tells the pre-training from it. Name the folder that pretraining/run.py wrote, or leave --run out."
            )
        return {}, {}
    made = run_folder / "model"
    if run_dir and not (made.is_dir() and folder_fingerprint(made) == fingerprint):
        raise ValueError(
            f"The run in {run_folder} made another model than {folder}: their fingerprints differ. A card must not "
            "tell of data that the model has not seen. Name the run that made it, or leave --run out."
        )
    run = run_folder / "run.json"
    return recipe, json.loads(run.read_text(encoding="utf-8")) if run.is_file() else {}


def _read_results(path: Path, folder: Path, fingerprint: str) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"Results not found: {path}. Relative paths start at {Path.cwd()}. Name a results.json.")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        measured = results["model"]["fingerprint"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is not a results.json of finetuning/run.py. Its scores cannot be read. Name that file."
        ) from None
    seed_folder = folder.resolve().parent  # a model that this very run fine-tuned: <run>/seed-N/model
    is_its_own = seed_folder.name.startswith("seed-") and seed_folder.parent == path.resolve().parent
    # results of several seeds' models name them all
    if fingerprint not in measured.split("+") and not is_its_own:
        raise ValueError(
            f"{path} was measured on a model with fingerprint {measured[:19]}, and {folder} has {fingerprint[:19]}. "
            "These scores are another model's. Name results of this model, or evaluate it again."
        )
    return results


def _refuse_to_lose(target: Path) -> None:
    text, marker, rest = target.read_text(encoding="utf-8").rpartition(f"\n{MARKER}")
    if not marker or rest.strip() != f"{_hash(text)} -->":
        what = "was edited since it was written here" if marker else "was not written by hub_cards"
        raise ValueError(f"{target} {what}. Writing the card would lose that text. Move it away, or add --overwrite.")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_hub_id(path: str) -> bool:
    return bool(HUB_ID.fullmatch(path)) and not Path(path).exists()


def _name(path: str) -> str:
    """A path without the folders of this machine."""
    return path if not Path(path).is_absolute() else Path(path).name


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m hub_cards.card", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder; README.md is written into it")
    parser.add_argument("--results", nargs="*", default=[], metavar="FILE", help="results.json of this model's tasks")
    parser.add_argument("--run", metavar="DIR", help="pre-training run folder; default: the folder above the model")
    parser.add_argument("--repo", metavar="ID", help="id on the Hub (owner/name), for the title and the example")
    parser.add_argument(
        "--licence", metavar="ID", help="licence of the weights, such as apache-2.0; default: not named"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a README.md that was written or edited by hand"
    )
    arguments = parser.parse_args(argv)
    try:
        target = write_card(
            arguments.model, arguments.results, arguments.run, arguments.repo, arguments.licence, arguments.overwrite
        )
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(f"written: {target}")


if __name__ == "__main__":
    sys.exit(main())
