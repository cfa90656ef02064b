"""Writes the model card, README.md, into a model folder, from the files of its runs.

    python -m hub_cards.card --model runs/xlm_align/model --results runs/xlm_align/xnli/results.json

The command first collects into provenance/. Every call collects what it finds: the recipe and facts of the pre-training
run in the folder above the model, and the results of the run that fine-tuned the model. --results adds results of other
tasks, and --run names another pre-training run. New results replace earlier ones of the same run, and others are kept.
Then the command writes the card from config.json, the weights (the folder must have them) and provenance/. It leaves
out unknown facts.
"""

import hashlib
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import safe_open

from finetuning.results import run_name
from hub_cards import sections
from hub_cards.about import about, known_limits, pictures
from hub_cards.collecting import collect
from hub_cards.examples import uses
from hub_cards.metadata import card_data, eval_files, learned_data, start_of
from hub_cards.record import Record, hub_id, read_record, write_record
from modeling.checkpoints import check_weights, load_config
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import folder_fingerprint, read_json, written_aside

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "<!-- written by hub_cards.card, "  # with a hash of the rest: people may edit cards
FOLDER_ITSELF = "path/to/this/folder"  # in examples, of a model that has no id on the Hub


def write_card(
    model_dir: str | Path,
    results: Iterable[str | Path] = (),
    run_dir: str | Path | None = None,
    repo: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
    license_name: str | None = None,
    license_link: str | None = None,
    base_model: str | None = None,
) -> Path:
    """Collects into provenance/, writes README.md and .eval_results/ into `model_dir`, and returns the card's path.

    The next call remembers `repo` (owner/name), `license` and `base_model`. `base_model` is the Hub id of the model
    that the run started from, for a recipe that names a copy of it.

    Raises ValueError, before anything is written, for missing files and files of another model. Without `overwrite`, it
    also raises for a card that this function did not write, or that was edited since.
    """
    folder = Path(model_dir)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Name one that save_pretrained wrote.")
    weights = folder_fingerprint(folder)
    target = folder / "README.md"
    text = target.read_text(encoding="utf-8", errors="replace") if target.exists() else ""
    if text.strip() and not as_written(text) and not overwrite:
        raise ValueError(
            f"{target} was not written by hub_cards, or was edited since. Move it away, or add --overwrite."
        )
    for option, value in (("--repo", repo), ("--base-model", base_model)):
        if value and not hub_id(value):
            raise ValueError(f"{option} is {value!r}, which is not a Hub id. Give owner/name.")
        validate_repo_id(value or "any")
    named = {"id": license, "name": license_name, "link": license_link}
    stated = {key: value for key, value in named.items() if value}
    parameters = count_parameters(folder)
    config = load_config(str(folder))  # raises for a damaged one
    try:
        record = read_record(folder)
    except ValueError:  # of other weights, or not legible
        if not overwrite:
            raise
        record = Record(weights)
    record = collect(record, folder, results, run_dir)
    record = replace(record, figures=record.figures | pictures(config.model_type))
    given = {"name": record.name or run_name(folder), "repo": repo, "base_model": base_model, "license": stated}
    record = replace(record, **{field: value for field, value in given.items() if value})
    _check_base_model(record)
    write_record(folder, record, eval_files(record))
    with written_aside(target) as stream:
        stream.write(render(folder, record, parameters))
    return target


def render(folder: Path, record: Record, parameters: int) -> str:
    """Returns the card of a model folder with `record` in provenance/; unknown values are empty in the template."""
    config = read_json(folder / "config.json")
    name = record.repo or record.name
    experiments, task = sections.experiments_of(record), sections.task(config, record)
    known = known_limits(config, learned_data(record), bool(task))
    values = {
        "name": name,
        "description": sections.description(config, parameters, record),
        "demonstration": parameters < sections.DEMONSTRATION_PARAMETERS,
        "about": about(config["model_type"]),
        "uses": uses(folder, config, record, record.repo or FOLDER_ITSELF),
        "task": task,
        "has_code": bool(config.get("auto_map")),
        "training": sections.training(record),
        "figures": record.figures,
        "results": sections.results(experiments),
        "several_seeds": any(len(result.content["seeds"]) > 1 for result in record.results),
        "scores": sections.scores(experiments),
        "limits": sections.limits(record, experiments, known),
        "licenses": sections.licenses(record),
    }
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": sections.plain, "labeled": sections.labeled}
    data = card_data(config, record, name, {file.name for file in folder.iterdir()})
    card = ModelCard(f"---\n{data}\n---\n\n{environment.get_template('card.md.jinja').render(**values)}")
    text = str(card).rstrip() + "\n"
    return text + f"\n{MARKER}{_hash(text)} -->\n"


def as_written(text: str) -> bool:
    """Returns whether a card is unchanged since it was written here, so that a new one may replace it."""
    text, marker, rest = text.replace("\r\n", "\n").rpartition(f"\n{MARKER}")
    return bool(marker) and rest.strip() == f"{_hash(text)} -->"


def count_parameters(folder: Path) -> int:
    """Returns the number of parameters of a model folder, tied ones once; the tensors themselves are not read.

    Raises ValueError if the weights are in another format than safetensors.
    """
    files = list(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors. Load the model, and save it with save_pretrained.")
    check_weights(str(folder))
    total = 0
    for file in files:
        with safe_open(file, framework="numpy") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())
    return total


def _check_base_model(record: Record) -> None:
    """Raises ValueError if the recipe has no base model, or another one than the record."""
    start = start_of(record)
    is_known = bool(record.recipe) or any(result.own for result in record.results)
    if record.base_model and ((is_known and not start) or (hub_id(start) and start != record.base_model)):
        begun = start or "random weights"
        raise ValueError(
            f"--base-model is {record.base_model}, and the recipe of the run starts from {begun}. Leave it out."
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m hub_cards.card", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, into which the card is written")
    parser.add_argument(
        "--results",
        nargs="+",
        default=[],
        metavar="PATH",
        help="results.json of this model's tasks, or folders of runs and suites; the results of the run that "
        "fine-tuned the model are always collected from above the model folder",
    )
    parser.add_argument(
        "--run", metavar="DIR", help="folder of the pre-training run (default: the folder above the model)"
    )
    parser.add_argument(
        "--repo", metavar="ID", help="Hub id (owner/name) of this model, for the title and the examples"
    )
    parser.add_argument(
        "--base-model", metavar="ID", help="Hub id of the model that the run started from, if its recipe names a copy"
    )
    parser.add_argument("--license", metavar="ID", help="license of the weights, such as apache-2.0 or other")
    parser.add_argument("--license-name", metavar="NAME", help="name of the license, with --license other")
    parser.add_argument("--license-link", metavar="URL", help="address of the license's text, with --license other")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a card that was written or edited by hand, and a provenance/ of other weights",
    )
    given = vars(parser.parse_args(argv))
    model = given.pop("model")
    with user_errors("run the same command again to continue"):
        target = write_card(model, given.pop("results"), given.pop("run"), **given)
    print(f"written: {target}")


if __name__ == "__main__":
    sys.exit(main())
