"""Every command and every example of the documentation is run, on the made-up place of conftest.py.

`HOW` finds a command by its beginning. Training stops after its plan (`--dry_run`, `--check_data`), or overrides make
it small; the flags, overrides, recipes and folders are those of the page. A command that is not in `HOW` fails.
"""

import importlib.util
import io
import itertools
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import forget_accelerate
from tests.documentation.conftest import commands_of

ROOT = Path(__file__).parents[2]
# of the papers' sizes: instead of their hundreds of corpora
TWO_CORPORA = (
    "monolingual=[{language: en, path: sample_corpus, config: en, size: 48, document_column: id}]",
    "bitext=[{source_language: en, target_language: de, source: {path: sample_corpus, config: en}, "
    "target: {path: sample_corpus, config: de}, join_on: id, size: 48}]",
)
TINY_BATCHES = ("mlm", "tlm", "camlm", "btmlm", "ca_mlm_segments", "ca_mlm_pairs")


def call(module: str, *arguments: str) -> None:
    """`python -m module arguments` in this process; user errors are shown as errors of the test."""
    forget_accelerate()
    importlib.import_module(module).main(list(arguments))


def launched(words: list[str]) -> tuple[str, list[str]]:
    """The script of `accelerate launch`, whose own flags accelerate itself parses, and the script's arguments."""
    if words[0] == "python":
        return words[1], words[2:]
    from accelerate.commands.launch import launch_command_parser

    options = launch_command_parser().parse_args(words[2:])
    return options.training_script, options.training_script_args


def pre_train(words: list[str]) -> None:
    """The plan of a run."""
    from pretraining.recipe import Recipe
    from zoo_core.recipes import load_recipe

    script, arguments = launched(words)
    assert script == "pretraining/run.py" and Path(script).is_file()
    recipe = arguments[arguments.index("--config") + 1]
    if Path(recipe).stem in ("base", "large"):
        phases = enumerate(load_recipe(Recipe, recipe, [word for word in arguments if "=" in word]).phases)
        small = [f"phases.{n}.objectives.{name}.batch_size=8" for n, phase in phases
                 for name in phase.objectives if name in TINY_BATCHES]  # fmt: skip
        arguments += [*TWO_CORPORA, *small, "hub_root=../shared/hub", "num_workers=0", "gradient_accumulation_steps=1"]
    elif "/aligner" in recipe:
        arguments.append("hub_root=../shared/hub")
    for shards in (word.removeprefix("prepared=") for word in arguments if word.startswith("prepared=")):
        if not Path(shards).exists():  # what an earlier command of the page writes
            call("pretraining.tools.prepare", "--config", recipe, "--output", shards)
    call("pretraining.run", *(word for word in arguments if word not in ("--resume", "--dry_run")), "--dry_run")


def fine_tune(words: list[str]) -> None:
    """Reads and encodes the data of a task, or of the tasks of a suite that the made-up mirror has."""
    script, arguments = launched(words)
    assert script == "finetuning/run.py" and Path(script).is_file()
    if "--suite" in arguments and "sample" not in arguments:
        arguments += ["--skip_missing", "hub_root=../shared/hub"]
    if "wmt14" in arguments[1]:  # in 16 bits, which a CPU refuses
        arguments += ["training.precision=fp32", "hub_root=../shared/hub"]
    call("finetuning.run", *(word for word in arguments if word != "--check_data"), "--check_data")


def align(words: list[str]) -> None:
    """The aligner, with the redirections of a shell."""
    files = {sign: words[words.index(sign) + 1] for sign in ("<", ">") if sign in words}
    words = words[1 : min((words.index(sign) for sign in files), default=None)]
    if words[0] == "adapt":
        remove(Path(words[words.index("--output") + 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webbrowser.open", lambda url: True)
        if "<" in files:
            content = io.BytesIO(Path(files["<"]).read_bytes())
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(content)))
        call("finetuning.align.command", *words)


def align_launched(words: list[str]) -> None:
    """The aligner in one process."""
    script, arguments = launched(words)
    assert script == "finetuning.align"
    remove(Path(arguments[arguments.index("--output") + 1]))
    call("finetuning.align.command", *arguments)


def module(words: list[str]) -> None:
    """`python -m ...`, unchanged, after the output of an earlier run is removed."""
    if "--output" in words:
        remove(Path(words[words.index("--output") + 1]))
    if words[2].startswith("modeling.convert"):
        places = itertools.takewhile(lambda word: not word.startswith("--"), words[3:])
        remove(Path(list(places)[-1]))
    call(words[2], *words[3:])


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def target(words: list[str]) -> None:
    """A target of the Makefile."""
    assert re.search(rf"^{words[1]}:.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def activate(words: list[str]) -> None:
    assert words == [".", f"{re.search(r'^VENV [?]= (.*)$', (ROOT / 'Makefile').read_text(), re.M)[1]}/bin/activate"]


def installs(words: list[str]) -> None:
    """What is installed is in this repository, or is torch; `make test-install` installs both."""
    assert words[2] == "torch" or (words[2:] == ["."] and (ROOT / "pyproject.toml").is_file())


def has_help(words: list[str]) -> None:
    """A command of the aligner that a page mentions without its options."""
    with pytest.raises(SystemExit) as stopped:
        call("finetuning.align.command", words[1], "--help")
    assert stopped.value.code == 0


def only_flags(words: list[str]) -> None:
    """A benchmark's flags: its measurements are too long for a test, and its own tests run it small."""
    importlib.import_module(words[2]).read_flags(words[3:])


def planted(words: list[str]) -> None:
    """A table of many runs, each of which is as if it had been run: its results are those of another one."""
    from finetuning import running

    def run(task, resume: bool, command: list[str]) -> None:
        shutil.copytree("runs/suite/topics", task.recipe.output_dir, dirs_exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run", run)
        call(words[2], *words[3:])
    assert list(Path(words[words.index("--output") + 1]).glob("*.png"))


def is_there(words: list[str]) -> None:
    """A command that a page mentions without its flags."""
    assert callable(importlib.import_module(words[2]).main)


def push(words: list[str], hub, card: str) -> None:
    """Checked, rehearsed and done as the page has it, on a Hub on loopback, after the page's command for the card.

    tests/hub_cards/test_folder_check.py and the demo check that every class loads in a fresh process.
    """
    from hub_cards import folder_check

    call(*shlex.split(card)[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_check, "_load", lambda folder: [])
        call(words[2], *words[3:])
    assert bool(hub.repos) == (words[2] == "hub_cards.push" and "--dry-run" not in words)


def space(words: list[str]) -> None:
    """The page's flags: it is served and driven by tests/hub_cards/test_space_in_a_browser.py."""
    spec = importlib.util.spec_from_file_location("app_of_the_space", ROOT / words[1])
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    app.complete(app.make_parser().parse_args(words[2:]))


def is_installed(words: list[str]) -> None:
    """A command of the Hub's own program, which needs an account or a network."""
    assert shutil.which(words[0], path=sysconfig.get_path("scripts"))


def help_of(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(words[2], *words[3:])
    assert stopped.value.code == 0


def search(words: list[str]) -> None:
    """Searches the files of the repository; a copy without git has nothing to search."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr  # 1: nothing is found


HOW: dict[str, Callable[[list[str]], None]] = {
    r"make (demo|dist|docs|test|test-all|check|bench|reproduce|setup|help|space)\b": target,
    r"pip install ": installs,
    r"\. \S+/bin/activate": activate,
    r"(accelerate launch .*|python )pretraining/run\.py --config": pre_train,
    r"(accelerate launch .*|python )finetuning/run\.py --(config|suite)": fine_tune,
    r"accelerate launch .*--module finetuning\.align ": align_launched,
    r"word-align \w+$": has_help,
    r"word-align (?!\w+$)": align,
    r"python -m pretraining\.(tools\.\w+|supported) ": module,
    r"python -m finetuning\.\w+\.(compare|label_text|translations) ": module,
    r"python -m finetuning\.tools\.grid ": planted,
    r"python -m [\w.]+$": is_there,
    r"python -m hub_cards\.(card|sentence_transformer) ": module,
    r"python hub_cards/space/app\.py": space,
    r"python -m hub_cards\.(push|folder_check) ": push,
    r"hf (auth login|download )": is_installed,
    r"python -m modeling\.convert_\w+ --help": help_of,
    r"python -m modeling\.convert_\w+ (?!--help)": module,
    r"python -m bench\.\w+ ": only_flags,
    r"git grep ": search,
}


# huggingface_hub's way of sending a file over HTTP, which Xet has replaced, is deprecated in the HTTP library
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_each_command_runs(command, place, pages, request):
    words = shlex.split(command, comments=True)
    found = [how for pattern, how in HOW.items() if re.match(pattern, command)]
    assert len(found) == 1, f"{len(found)} entries of HOW for: {command}"
    if found[0] is push:
        card = re.search(r"^python -m hub_cards\.card .*--repo .*", pages["hub_cards/README.md"].text, re.MULTILINE)[0]
        return push(words, request.getfixturevalue("hub"), card)
    found[0](words)


# the exporters of torch and transformers, and PEFT, call what those deprecate
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_each_example_of_python_runs(python_block, place, shallow):
    if "OnnxExporter" in python_block:
        shallow("runs/xlm_align-smoke/model")
    exec(compile(python_block, "the documentation", "exec"), {"__name__": "example"})


def test_the_search_for_words_finds_those_of_the_table(page_of):
    """CONTRIBUTING.md: its command runs, and its patterns match each phrase in the first column of its table."""
    page = page_of("CONTRIBUTING.md")
    (command,) = (command for command in commands_of(page) if command.startswith("git grep "))
    words = shlex.split(command)
    patterns = [word for option, word in itertools.pairwise(words) if option == "-e"]
    (table,) = re.findall(r"^\| instead of .*\n((?:\|.*\n)+)", page.text, re.MULTILINE)
    phrases = [phrase for row in table.splitlines()[1:] for phrase in row.split("|")[1].strip().split(", ")]
    assert len(phrases) > 12
    assert [phrase for phrase in phrases if not any(re.search(pattern, phrase) for pattern in patterns)] == []
    (how,) = (how for pattern, how in HOW.items() if re.match(pattern, command))
    how(words)
