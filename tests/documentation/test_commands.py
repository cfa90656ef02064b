"""Every command of the documentation parses, with its recipe and overrides; what its examples import is there."""

import argparse
import ast
import importlib
import importlib.util
import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from crosslingual_zoo.finetuning import runs, suite
from crosslingual_zoo.finetuning.align.command import COMMANDS
from crosslingual_zoo.zoo_core import command_line
from tests.conftest import forget_accelerate
from tests.documentation.conftest import PAGES, commands_of, read_page

ROOT = Path(__file__).parents[2]
OTHERS = re.compile(
    r"pip install |python3 -m venv |accelerate config|hf (auth|download) |\. \S+/bin/activate|python -m pytest|ruff "
    r"|\.ci/run|git grep "
)
PAGES_BY_NAME = {name: read_page(name) for name in PAGES}
COMMANDS_OF_PAGES = sorted(set(itertools.chain.from_iterable(map(commands_of, PAGES_BY_NAME.values()))))


class Parsed(Exception):
    """A command line was read to its end."""


def stops(function: Callable) -> Callable:
    """The function, after which its program ends."""

    def call(*arguments, **options):
        function(*arguments, **options)
        raise Parsed

    return call


def program_of(words: list[str]) -> tuple[str, list[str]]:
    """The module or script of a command, and its arguments; accelerate's own flags are parsed by accelerate."""
    if words[0] == "word-align":
        return "crosslingual_zoo.finetuning.align.command", words[1:]
    if words[:2] == ["accelerate", "launch"]:
        from accelerate.commands.launch import launch_command_parser

        options = launch_command_parser().parse_args(words[2:])
        script = "crosslingual_zoo.finetuning.align.command" if options.module else options.training_script
        return script, options.training_script_args
    assert words[0] == "python"
    if words[1] == "-m":
        return words[2], words[3:]
    return words[1], words[2:]


def load(program: str):
    """A module by its name, or a script by its path."""
    if not program.endswith(".py"):
        return importlib.import_module(program)
    spec = importlib.util.spec_from_file_location(Path(program).stem, ROOT / program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", COMMANDS_OF_PAGES)
def test_pages_each_command_parses(command, monkeypatch):
    words = shlex.split(re.sub(r" [<>] \S+| #.*", "", command))  # without a shell's redirections and comments
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1] in targets
        return
    if OTHERS.match(command):
        return
    program, arguments = program_of(words)
    main = load(program).main
    if not arguments or (words[0] == "word-align" and arguments[0] in COMMANDS and len(arguments) == 1):
        return  # mentioned without its arguments
    monkeypatch.chdir(ROOT)
    forget_accelerate()
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stops(argparse.ArgumentParser.parse_args))
    monkeypatch.setattr(command_line, "load_recipe", stops(command_line.load_recipe))
    monkeypatch.setattr(suite, "read_recipes", stops(suite.read_recipes))
    monkeypatch.setattr(runs, "product_of", stops(runs.product_of))
    with pytest.raises(Parsed):
        main(arguments)


@pytest.mark.parametrize("page", PAGES)
def test_pages_what_examples_import_is_there(page):
    for block in PAGES_BY_NAME[page].of("python"):
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), page, "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_pages_no_example_asks_to_run_code(page):
    """Auto classes and `pipeline` wait for y/N in a terminal where a folder has code and the flag is missing."""
    for block in PAGES_BY_NAME[page].of("python"):
        calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
        for call in calls:
            called = ast.unparse(call.func)
            if not re.fullmatch(r"(transformers\.)?(Auto\w+\.from_pretrained|pipeline)", called):
                continue
            source = ast.unparse(call)
            is_folder_of_ours = "/model'" in source or "folder" in source
            assert not is_folder_of_ours or "trust_remote_code=True" in source, source
