"""Writes the model card, README.md, into a model folder, from the files of its runs.

    python -m crosslingual_zoo.hub_cards.card --model runs/xlm_align/model --results runs/xlm_align/xnli \\
        --repo owner/name --license mit

The card is made of config.json and the weights, of recipe.yaml, run.json and events.jsonl in the folder above the
model, and of the results. Results of the run that fine-tuned the model are found above it; --results names those of
other tasks. Nothing is remembered: each call makes the whole card, and leaves out what it does not know.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.provenance import ADAPTER_CONFIGURATION, folder_fingerprint, is_adapter, written_aside

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

    from crosslingual_zoo.hub_cards.record import Record

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "<!-- written by hub_cards.card, "  # with hashes of the rest, as people may edit cards, and of the weights
FOLDER_ITSELF = "path/to/this/folder"  # in examples, of a model that has no id on the Hub


def write_card(
    model_dir: str | Path,
    results: Iterable[str | Path] = (),
    repo: str | None = None,
    name: str | None = None,
    license: str | None = None,
    base_model: str | None = None,
    base_note: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes README.md, and a copy of the run's curves.png, into `model_dir`. Returns the card's path.

    Args:
        model_dir: folder that save_pretrained wrote.
        results: results.json files, or folders of runs and suites.
        repo: Hub id (owner/name) of the model. Without it, `name` is the title.
        license: of the weights, as the Hub names it.
        base_model: Hub id of the start, for a recipe that names a copy of it; `base_note`: how the copy differs.
        overwrite: replaces a card that this function did not write, or that was edited since.

    Raises ValueError, before anything is written, for missing files, files of another model, and an edited card.
    """
    from huggingface_hub.utils import validate_repo_id

    from crosslingual_zoo.hub_cards.metadata import start_of
    from crosslingual_zoo.hub_cards.record import hub_id, read_record

    folder = Path(model_dir)
    target = folder / "README.md"
    if target.exists() and not overwrite:
        text = target.read_text(encoding="utf-8", errors="replace")
        if text.strip() and not as_written(text):
            raise ValueError(
                f"{target} was not written by hub_cards, or was edited since. Move it away, or add --overwrite."
            )
    for option, value in (("--repo", repo), ("--base-model", base_model)):
        if value and not hub_id(value):
            raise ValueError(f"{option} is {value!r}, which is a folder here, or no Hub id. Give owner/name.")
        validate_repo_id(value or "any")
    paths = [*results]
    if is_adapter(folder):
        if paths or base_model or base_note:
            raise ValueError(f"{folder} is an adapter, whose card is made of its own files. Give no results and base.")
        with written_aside(target) as stream:
            stream.write(render_adapter(folder, repo, name, license))
        return target
    try:
        record = read_record(folder, paths, name, repo, license, base_model, base_note)
        start = start_of(record)
        text = render(folder, record)
    except (AttributeError, KeyError, TypeError) as error:
        changed = f"The recipe, run.json or results of {folder} are not as a run wrote them: {error!r}. Restore them."
        raise ValueError(changed) from error
    is_other_base = not start or (hub_id(start) and start != base_model)
    if base_model and (record.recipe or record.own_results) and is_other_base:
        raise ValueError(f"--base-model is {base_model}, and the run starts from {start or 'random weights'}.")
    if record.curves:
        (folder / "curves.png").write_bytes(record.curves.read_bytes())
    with written_aside(target) as stream:
        stream.write(text)
    for note in _notes(record, start):
        print(f"note: {note}", file=sys.stderr)
    return target


def _notes(record: "Record", start: str) -> Iterator[str]:
    """What the owner of a model must decide: the base model's id, and whether rows of the data may be shown."""
    from crosslingual_zoo.hub_cards.record import hub_id

    is_random = record.recipe and not record.own_results and not start
    if not is_random and not record.base_model and not hub_id(start):
        reason = "its start is not known"
        if start:
            reason = f"the run started from {start}, which is no id of the Hub"
        yield f"the card names no base model: {reason}. If it is on the Hub, give --base-model owner/name."
    if record.rows:
        yield (
            f"the examples show {len(record.rows)} rows of the evaluation data, with their predictions. If these must "
            "not be public, move `predictions` out of the seed's folder and write the card again."
        )


def render_adapter(folder: Path, repo: str | None, name: str | None, license: str | None) -> str:
    """Returns the card of an adapter's folder."""
    from crosslingual_zoo.hub_cards.adapter_card import adapter_values

    values = adapter_values(folder, repo, name, license)
    return finished(values.pop("data"), "adapter.md.jinja", values, folder_fingerprint(folder, ADAPTER_CONFIGURATION))


def finished(data: "ModelCardData", template: str, values: dict[str, Any], weights: str) -> str:
    """A card: metadata, the template with its values, and the mark with which `as_written` knows it."""
    from huggingface_hub import ModelCard
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from crosslingual_zoo.hub_cards import sections

    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": sections.plain, "labeled": sections.labeled}
    body = environment.get_template(template).render(**values)
    text = str(ModelCard(f"---\n{data}\n---\n\n{body}")).rstrip() + "\n"
    return text + f"\n{MARKER}{_hash(text)}, of weights {weights} -->\n"


def render(folder: Path, record: "Record") -> str:
    """Returns the card of a model folder. Unknown values are empty in the template."""
    from crosslingual_zoo.hub_cards import sections
    from crosslingual_zoo.hub_cards.examples import uses
    from crosslingual_zoo.hub_cards.metadata import card_data, reported
    from crosslingual_zoo.hub_cards.record import has_code

    contents = list(map(reported, record.results))
    values = {
        "name": record.name,
        "description": sections.description(record),
        "poor": sections.poor(record),
        "about": sections.about(record.config["model_type"]),
        "uses": uses(folder, record, record.repo or FOLDER_ITSELF),
        "task": sections.task(record),
        "has_code": has_code(folder),
        "training": sections.training(record),
        "curves": record.curves,
        "results": sections.results(contents),
        "scores": sections.scores(contents) if contents else {},
        "limits": sections.limits(record),
        "licenses": sections.licenses(record),
    }
    return finished(card_data(folder, record), "card.md.jinja", values, record.weights)


def as_written(text: str) -> bool:
    """Returns whether a card is unchanged since it was written here, so that a new one may replace it."""
    body, marker, rest = text.replace("\r\n", "\n").rpartition(f"\n{MARKER}")
    has_text_behind = rest.rstrip("\n").count("\n") > 0
    return bool(marker) and rest.startswith(f"{_hash(body)}, ") and not has_text_behind


def weights_of(text: str) -> str | None:
    """Returns the fingerprint of the weights that a card was written for; None for a card that was not written here."""
    _, marker, rest = text.rpartition(f"\n{MARKER}")
    if not marker:
        return None
    return rest.partition("of weights ")[2].partition(" -->")[0] or None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m crosslingual_zoo.hub_cards.card", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, into which the card is written")
    about = "results.json of tasks on this model, or folders of runs and suites"
    parser.add_argument("--results", nargs="+", default=[], metavar="PATH", help=about)
    for option, metavar, meaning in (
        ("--repo", "ID", "Hub id (owner/name) of this model, for the title and the examples"),
        ("--name", "NAME", "title of the card without --repo (default: the name of the run's folder)"),
        ("--license", "ID", "license of the weights, such as apache-2.0"),
        ("--base-model", "ID", "Hub id of the model that the run started from, if its recipe names a copy"),
        ("--base-note", "TEXT", "how the start differs from that model, such as 'weights rounded to 4 bits'"),
    ):
        parser.add_argument(option, metavar=metavar, help=meaning)
    parser.add_argument("--overwrite", action="store_true", help="replace a card that was written or edited by hand")
    options = vars(parser.parse_args(argv))
    model = options.pop("model")
    with user_errors():
        say_loading(model)
        print(f"written: {write_card(model, **options)}")


if __name__ == "__main__":
    sys.exit(main())
