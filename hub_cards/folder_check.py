"""Looks through a model folder before it is given away: is it whole, and is nothing in it that must not go out?

    python -m hub_cards.folder_check --model runs/xlm_align/model

`files_of` says what would go to the Hub, `check_folder` what is wrong. First the files alone: nothing of a folder is
run that holds code of somebody else's. Only then a fresh process loads it from another place, as a stranger would.
"""

import argparse
import json
import os
import pickletools
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from huggingface_hub import ModelCard
from safetensors import SafetensorError, safe_open

from hub_cards.card import as_written, count_parameters, render
from hub_cards.content_check import OUTSIDE, TEXT, Problem, content_problems, read_json, read_text, strings_of
from hub_cards.record import FOLDER, check_record, read_record
from zoo_core.provenance import REPOSITORY

JUNK = {"__pycache__", ".cache", ".git", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", ".pytest_cache", ".ruff_cache"}
HIDDEN = {".gitattributes", ".eval_results"}
STATES = re.compile(
    r"(optimi[sz]er|scheduler|scaler|rng_state|random_states|training_args|trainer_state|events\.out\.)", re.IGNORECASE
)
STEPS = re.compile(r"(checkpoint|step|seed)-\d+", re.IGNORECASE)  # folders of a run
PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".dill"}
ENDS = {".png": b"IEND\xaeB`\x82", ".jpg": b"\xff\xd9", ".jpeg": b"\xff\xd9"}
MAGIC = {".png": b"\x89PNG\r\n", ".jpg": b"\xff\xd8\xff", ".jpeg": b"\xff\xd8\xff"}
OTHERS = {".safetensors", ".model", ".onnx", ".onnx_data"}  # sentencepiece's and ONNX's: protocol buffers
WITHOUT_ENDING = {"LICENSE", "LICENCE", "NOTICE"}  # text files without an ending
ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")
NOT_EVERYWHERE = set('<>:"|?*\\')  # characters of file names that Windows has not, or takes for a path
# What hub_cards.sentence_transformer writes; other modules of that library name code and models of their own.
MODULES = {
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
}
MODULE_ARGUMENTS = re.compile(r"(model|tokenizer|processor|config)_(args|kwargs)")
ATTENTION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
SECTIONS = ("Use", "Limits")  # beginnings of headings that a card has to have
CARD_COMMAND = "python -m hub_cards.card --model DIR"


def check_folder(folder: str | os.PathLike, load: bool = True) -> list[Problem]:
    """What is wrong with a model folder; empty where it can be pushed.

    load: whether a fresh process loads it as well, where the files are right; it takes about as long as importing
        transformers and reading the weights once.

    Raises ValueError where there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder}. What goes to the Hub is a model folder as save_pretrained writes it. Name "
            "the folder with config.json and the weights, such as runs/NAME/model."
        )
    problems = list(_weights(folder))
    if problems and not (folder / "config.json").is_file():
        return problems  # not a model folder at all: the rest would only repeat it
    files, _ = files_of(folder)
    problems += _tree(folder)
    regular = [path for path in files if (folder / path).is_file() and not (folder / path).is_symlink()]
    for path in regular:
        problems += _kind(folder, path)
    if any(problem.file == "config.json" for problem in problems):
        return problems
    problems += _code(folder, regular)
    for path in regular:
        if not any(problem.file == path for problem in problems):
            problems += content_problems(folder, path, CARD_COMMAND)
    problems += _card(folder)
    if not any(problem.file.endswith(".safetensors") or "config.json" in problem.file for problem in problems):
        problems += [_of_record(message) for message in check_record(folder)]
    if not problems:
        problems += _figures(folder)
    if load and not problems:
        problems += _load(folder)
    return problems


def files_of(folder: Path) -> tuple[list[str], list[str]]:
    """Paths in the folder, with `/`, that go to the Hub, and those left out: caches and what file browsers leave."""
    kept, left_out = [], []
    for directory, names, files in os.walk(folder):
        names.sort()
        for name in sorted(files):
            kept.append(Path(directory, name).relative_to(folder).as_posix())
        for name in list(names):
            path = Path(directory, name)
            if name in JUNK:
                names.remove(name)
                left_out.append(f"{path.relative_to(folder).as_posix()}/")
            elif path.is_symlink():
                kept.append(path.relative_to(folder).as_posix())
    left_out += [path for path in kept if PurePosixPath(path).name in JUNK]
    return sorted(set(kept) - set(left_out)), sorted(left_out)


def _weights(folder: Path) -> Iterator[Problem]:
    """Weights of transformers' names, all shards, each tensor in the shard that the index names."""
    single, index = "model.safetensors", "model.safetensors.index.json"
    why = "Without weights and configuration it is no model."
    if not (folder / "config.json").is_file():
        remedy = "Name a folder that save_pretrained wrote, such as runs/NAME/model."
        yield Problem("config.json", f"{folder} has none", why, remedy)
    elif not isinstance(read_json(folder / "config.json"), dict):
        yield Problem("config.json", "It is not a JSON object", why, "Take the one that save_pretrained wrote.")
    expected = {single} if (folder / single).is_file() else set()
    if (folder / index).is_file():
        if expected:
            why = "transformers would read one of them, and others the other."
            yield Problem(index, f"{single} is there as well", why, "Remove the one that is left over.")
        content = read_json(folder / index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            yield Problem(index, "It has no weight_map", "Nobody would find the weights.", "Save the model again.")
            return
        for shard in sorted(set(weight_map.values())):
            expected.add(shard)
            if OUTSIDE.search(shard) or "/" in shard or "\\" in shard:
                why = "Only files of this folder are uploaded."
                yield Problem(index, f"It names {shard}, outside of the folder", why, "Save the model again.")
            elif not (folder / shard).is_file():
                yield Problem(shard, f"{index} names it, and it is not there", why, "Copy the folder again, whole.")
            else:
                lacking = {name for name, file in weight_map.items() if file == shard} - _tensors(folder / shard)
                if lacking:
                    what = f"{len(lacking)} weights are not in it, such as {min(lacking)}"
                    yield Problem(shard, what, f"{index} says that they are.", "Save the model again.")
    elif not expected:
        others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        what = f"{folder} has no weights as safetensors" + (f", only {', '.join(others)}" if others else "")
        remedy = "Load the model and save it with save_pretrained: it writes safetensors."
        yield Problem(single, what, why if not others else "Pickles run code in whoever loads them.", remedy)
    for path in files_of(folder)[0]:
        if (
            path.lower().endswith(".safetensors")
            and path not in expected
            and not STATES.match(PurePosixPath(path).name)
        ):
            remedy = "Remove it, or save the model again."
            yield Problem(path, "The model does not use it", "Nobody would know what it is.", remedy)


def _tensors(file: Path) -> set[str]:
    try:
        with safe_open(file, framework="numpy") as weights:
            return set(weights.keys())
    except (SafetensorError, OSError):
        return set()


def _tree(folder: Path) -> Iterator[Problem]:
    """Links, what is neither file nor folder, and names that another system reads in another way."""
    alike: dict[str, str] = {}
    for path in files_of(folder)[0]:
        file = folder / path
        remedy = "Rename it, or remove it."
        if odd := sorted({char for char in path if unicodedata.category(char)[0] == "C" or char in NOT_EVERYWHERE}):
            why = "Other systems refuse such a name, or take it for another one."
            yield Problem(ascii(path)[1:-1], f"Its name holds {ascii(odd[0])}", why, remedy)
        first = alike.setdefault(unicodedata.normalize("NFKC", path).casefold(), path)
        if first != path:
            why = "Where case makes no difference, the one takes the other's place."
            yield Problem(path, f"It has the name of {first} but for case or accents", why, remedy)
        if file.is_symlink():
            why = "The Hub would get what it shows, and that could be any file of this machine."
            yield Problem(path, f"It is a link to {os.readlink(file)}", why, "Put the file itself there (cp -L).")
        elif not file.is_file():
            yield Problem(path, "It is neither a file nor a folder", "It cannot be uploaded.", "Remove it.")


def _kind(folder: Path, path: str) -> Iterator[Problem]:
    """Whether files of this kind belong in a model repository, by name and by first bytes."""
    name, suffix = PurePosixPath(path).name, PurePosixPath(path).suffix.lower()
    hidden = [part for part in PurePosixPath(path).parts if part.startswith(".") and part not in HIDDEN]
    try:
        with (folder / path).open("rb") as stream:
            start = stream.read(64)
    except OSError as error:
        yield Problem(path, f"It cannot be read: {error.strerror}", "So it cannot be looked through.", "See to that.")
        return
    if STATES.match(name) or any(map(STEPS.fullmatch, PurePosixPath(path).parts[:-1])):
        why = "It serves to go on training, says much about where that was, and nobody who uses the model needs it."
        yield Problem(path, "It is a state of training", why, "Remove it from this folder.")
    elif suffix in PICKLES or (suffix != ".safetensors" and _is_pickle(folder / path, start)):
        why = "Loading a pickle runs whatever code is in it."
        yield Problem(path, "It is a pickle, or can hold one", why, "Remove it; weights are saved as safetensors.")
    elif start.startswith(ARCHIVES):
        yield Problem(path, "It is an archive", "Nobody sees what is in it.", "Remove it.")
    elif hidden:
        yield Problem(path, "It is a hidden file", "Such files hold settings and secrets.", "Remove it, or rename it.")
    elif suffix == ".safetensors":
        if not _tensors(folder / path):
            yield Problem(path, "It is no whole safetensors file", "It cannot be loaded.", "Save or copy it again.")
    elif (suffix == "" and name not in HIDDEN | WITHOUT_ENDING) or suffix not in TEXT | OTHERS | MAGIC.keys():
        remedy = "Remove it, or give it an ending that says what it is."
        yield Problem(path, "It is of a kind that a model repository has no use for", "The Hub would keep it.", remedy)
    elif suffix in MAGIC and not _is_picture(folder / path, suffix):
        yield Problem(path, f"It is no {suffix[1:]} picture", "It is not what its name says.", "Remove it.")
    elif suffix in TEXT and read_text(folder / path) is None:
        yield Problem(path, "It is not text in UTF-8", "It is not what its name says.", "Remove it, or save it anew.")


def _is_picture(file: Path, suffix: str) -> bool:
    """By its first bytes and its last: readers of archives look for theirs at the end."""
    content = file.read_bytes()
    return content.startswith(MAGIC[suffix]) and content.endswith(ENDS[suffix])


def _is_pickle(file: Path, start: bytes) -> bool:
    """By content, whatever it is called: protocols 2 to 5 by their first bytes, others by reading the operations.

    One that breaks off counts too: what stands before has been run by then.
    """
    if re.match(rb"\x80[\x02-\x05]", start):
        return True
    names_code = False
    try:
        with file.open("rb") as stream:
            for code, argument, _ in pickletools.genops(stream):
                # text may begin like an operation too, but hardly with two bare names
                named = code.name in ("GLOBAL", "INST") and re.fullmatch(r"[\w.]+ [\w.]+", str(argument))
                names_code |= bool(named) or code.name == "STACK_GLOBAL"
                if names_code and code.name in ("INST", "REDUCE", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"):
                    return True
    except Exception:  # whatever is no pickle
        return False
    return names_code


def _code(folder: Path, files: list[str]) -> Iterator[Problem]:
    """Code: only this package's, only what the configuration reaches, and unchanged."""
    reached = set()
    for name in files:
        if not name.lower().endswith(".json") or PurePosixPath(name).name == "tokenizer.json":
            continue
        content = read_json(folder / name)
        yield from _code_of_others(name, content)
        for target in _code_targets(content):
            module = target.rpartition("--")[2].split(".")[0]
            remedy = "Save the model again, or take out the entry."
            if "--" in target:
                why = "The code of this model would be whatever is put there tomorrow."
                yield Problem(name, f"It names code in another repository, {target}", why, remedy)
            elif OUTSIDE.search(target) or "/" in target or "\\" in target or not module or "/" in name:
                yield Problem(name, f"It names code outside of its folder, {target}", "Nobody else has it.", remedy)
            elif f"{module}.py" not in files:
                yield Problem(name, f"It names {module}.py, which is not there", "The model would not load.", remedy)
            else:
                reached.add(f"{module}.py")
    wanted = {file for start in reached for file in _closure(start)}
    if "adapter_config.json" in files:
        why = "transformers would load the model that it names in place of this one."
        yield Problem("adapter_config.json", "It makes the folder an adapter of another model", why, "Remove it.")
    others = []
    for path in files:
        if not path.lower().endswith(".py"):
            continue
        if path not in wanted:  # all of which lie beside config.json
            why = "With trust_remote_code, code in the repository runs in whoever loads the model."
            what = "It is Python that neither config.json nor its code asks for"
            yield Problem(path, what, why, "Remove it.")
        elif (REPOSITORY / "modeling" / path).read_bytes() != (folder / path).read_bytes():
            others.append(path)
    if others:
        theirs = f"modeling/{others[0]}" if len(others) == 1 else "the files of that name in modeling/"
        what = f"{'It differs' if len(others) == 1 else 'They differ'} from {theirs} of this package"
        why = "It is not the code that was tested, or an older one."
        remedy = f"Copy {theirs} to the folder, as this package is installed here."
        yield Problem(", ".join(others), what, why, remedy)
    if lacking := sorted(wanted - set(files)):
        what = "The code of the folder imports it, and it is not there"
        remedy = "Copy it from modeling/ of this package."
        yield Problem(", ".join(lacking), what, "It would not load.", remedy)


def _code_of_others(name: str, content: Any) -> Iterator[Problem]:
    """What libraries fetch or import beside `auto_map`: kernels for attention, modules of sentence-transformers."""
    for key, value in _entries(content):
        fetched = [text for text in strings_of(value, False)[0] if "/" in text] if ATTENTION.fullmatch(key) else []
        if fetched:
            why = "transformers would fetch its code from there."
            yield Problem(name, f"Its {key} is {fetched[0]}, another repository", why, "Take the entry out.")
        if MODULE_ARGUMENTS.fullmatch(key) and value and name.startswith(("sentence_", "config_sentence_")):
            why = "sentence-transformers passes them to whatever loads the model."
            yield Problem(name, f"It has {key}", why, "Write it again with python -m hub_cards.sentence_transformer.")
    if name != "modules.json":
        return
    for module in content if isinstance(content, list) else [None]:
        kind = module.get("type") if isinstance(module, dict) else None
        if kind not in MODULES:
            why = "sentence-transformers would run code that is not its own, or that names further code."
            remedy = "Write it again with python -m hub_cards.sentence_transformer."
            yield Problem(name, f"It names the module {kind}", why, remedy)


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at whatever depth of nested JSON they stand."""
    rest = [content]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield from value.items()
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _code_targets(content: Any) -> Iterator[str]:
    """The `module.Class` names by which a configuration refers to code; `impl` is a custom pipeline's."""
    for key, value in _entries(content):
        if key in ("auto_map", "impl"):
            yield from strings_of(value, False)[0]


@cache
def _closure(file: str) -> frozenset[str]:
    """The files of modeling/ that this one imports, itself included; itself alone where it is not of the package."""
    from transformers.dynamic_module_utils import get_relative_import_files

    if not (REPOSITORY / "modeling" / file).is_file():
        return frozenset()
    reached = get_relative_import_files(str(REPOSITORY / "modeling" / file))
    return frozenset({file, *(Path(path).name for path in reached)})


def _card(folder: Path) -> Iterator[Problem]:
    """The card: there, legible to the Hub, with a licence, uses and limits, and no link that leads nowhere."""
    card, remedy = folder / "README.md", f"Write it with {CARD_COMMAND}."
    if not card.is_file():
        yield Problem("README.md", "There is no card", "Nobody would know what the model is, and is not, for.", remedy)
        return
    try:
        loaded = ModelCard.load(card)
    except (ValueError, TypeError, yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        yield Problem("README.md", f"Its metadata is not legible: {reason}", "The Hub would refuse it.", remedy)
        return
    if not loaded.data.get("license"):
        why = "Without one nobody may use the model."
        yield Problem("README.md", "It names no licence", why, f"{CARD_COMMAND} --licence ID (such as apache-2.0).")
    headings = re.findall(r"^#+ +(.+?) *$", loaded.text, re.MULTILINE)
    for section in SECTIONS:
        if not any(heading.startswith(section) for heading in headings):
            why = "A card says how a model is used and where it fails."
            yield Problem("README.md", f'It has no section "{section}"', why, remedy)
    for link in re.findall(r"\]\(([^)\s]+)", loaded.text):
        target = link.partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            inside = (folder / target).resolve().is_relative_to(folder.resolve())
            if not inside or not (folder / target).exists():
                yield Problem(
                    "README.md", f"It links to {link}, which is not in the folder", "Readers get nowhere.", remedy
                )


def _figures(folder: Path) -> Iterator[Problem]:
    """An edited card may say anything of the model but other scores than those of record/."""
    text = read_text(folder / "README.md")
    if not (folder / FOLDER).exists() or as_written(text):
        return
    measured = render(folder, read_record(folder), count_parameters(folder))
    found, expected = ({"model-index": _scores(card)} | {"Results": _results(card)} for card in (text, measured))
    for part in found:
        if found[part] != expected[part]:
            what = f"It was edited, and its {part} are not what record/ holds"
            why = "A card tells what was measured, and nothing else."
            remedy = f"Put your own words elsewhere, and the figures back: {CARD_COMMAND} --overwrite."
            yield Problem("README.md", what, why, remedy)


def _scores(card: str) -> str:
    return json.dumps(ModelCard(card, ignore_metadata_errors=True).data.to_dict().get("model-index"), default=str)


def _results(card: str) -> str:
    """The section with the results, without blanks at the ends of lines."""
    section = card.partition("\n## Results")[2].partition("\n## ")[0]
    return "\n".join(line.rstrip() for line in section.strip().splitlines())


def _of_record(message: str) -> Problem:
    """A message of `check_record`, which is in three parts already."""
    what, why, remedy = (re.split(r"(?<=\.) (?=[A-Z])", message, maxsplit=2) + ["", ""])[:3]
    return Problem(f"{FOLDER}/", what.rstrip("."), why, remedy)


def _load(folder: Path) -> list[Problem]:
    """What `fresh_load.py` finds, from a copy in another place, with an empty cache and without network."""
    with tempfile.TemporaryDirectory(prefix="hub_cards_") as elsewhere:
        copy, home = Path(elsewhere, "a copy", "model"), Path(elsewhere, "home")
        home.mkdir()
        for path in files_of(folder)[0]:
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.endswith(".safetensors"):
                target.symlink_to((folder / path).resolve())  # may be large, and is only read
            else:
                shutil.copy(folder / path, target)
        settings = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        program = Path(__file__).with_name("fresh_load.py")
        done = subprocess.run(
            [sys.executable, "-P", str(program), str(copy)],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}, no message"])[-1]
        remedy = "Save the model again, and look whether it loads."
        return [
            Problem(
                "config.json",
                f"A fresh process stopped when it loaded the folder: {last}",
                "So it would for others.",
                remedy,
            )
        ]
    return [Problem(*found) for found in json.loads(done.stdout.splitlines()[-1])]


def refusal(folder: Path, problems: list[Problem]) -> str:
    """All reasons not to push a folder, in one message."""
    reasons = "".join(f"\n- {problem}" for problem in problems)
    return f"{folder} cannot be pushed, for {plural(len(problems), 'reason')}:{reasons}"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hub_cards.folder_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, with its card")
    folder = Path(parser.parse_args(argv).model)
    try:
        problems = check_folder(folder)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: interrupted; nothing was written\n")
    if problems:
        parser.exit(2, f"{parser.prog}: error: {refusal(folder, problems)}\n")
    kept, left_out = files_of(folder)
    print(f"{folder} is whole, and a fresh process loads it: {len(kept)} files to push.")
    if left_out:
        print(f"Left out: {', '.join(left_out)}")


if __name__ == "__main__":
    sys.exit(main())
