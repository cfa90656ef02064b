"""`crosslingual_zoo`: its names, examples and runs."""

import doctest
import inspect
import io
import json
import logging
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import crosslingual_zoo
from crosslingual_zoo.hub_cards import card
from crosslingual_zoo.modeling import word_alignment
from crosslingual_zoo.zoo_core.console import RunBar
from tests.conftest import PREFIXES

RUNS = {"pretrain", "finetune", "Results", "read_results", "push"}  # their examples build on a run


@pytest.fixture(scope="module")
def names_of_examples(sample_tokenizer, zoo_model_dir):
    """What the examples leave to the reader: a tokenizer, models, texts."""
    from transformers import AutoTokenizer

    pairs = [{"source": "The house is small.", "target": "Das Haus ist klein."}]
    model = crosslingual_zoo.XlmAlignModel.from_pretrained(zoo_model_dir("xlm_align", "Model"))
    batch = crosslingual_zoo.TlmCollator(sample_tokenizer)(pairs)["tlm"]
    states = model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    other = AutoTokenizer.from_pretrained(zoo_model_dir("veco"))
    return {
        **{name: getattr(crosslingual_zoo, name) for name in crosslingual_zoo.__all__},
        **{"torch": torch, "tokenizer": sample_tokenizer, "folder": zoo_model_dir("veco"), "pairs": pairs},
        **{"encoder": model, "batch": batch, "states": states},
        **{"old_model": model, "old_tokenizer": sample_tokenizer, "new_tokenizer": other},
    }


class _ShownOutput(doctest.OutputChecker):
    """Compares what an example shows, and ignores what it prints otherwise."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        return not want or super().check_output(want, got, flags)


def run_examples(name: str, given: dict) -> None:
    failed = io.StringIO()
    runner = doctest.DocTestRunner(_ShownOutput(), verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    value = getattr(crosslingual_zoo, name)
    methods = [getattr(value, method, None) for method in ("__init__", "forward", "__call__")]
    docs = [value.__doc__, *(method.__doc__ for method in methods if inspect.isfunction(method))]
    text = "\n\n".join(inspect.cleandoc(doc) for doc in docs if doc)
    test = doctest.DocTestParser().get_doctest(text, dict(given), name, None, 0)
    assert test.examples
    runner.run(test, out=failed.write)
    assert not runner.failures, failed.getvalue()


@pytest.fixture
def model_of(zoo_model_dir, sample_tokenizer):
    """The tiny model of a class."""

    def load(cls: type):
        kind = cls.config_class.model_type
        languages = {"languages": ["de", "en"], "mask_token_id": sample_tokenizer.mask_token_id}
        head, config = cls.__name__.removeprefix(PREFIXES[kind]), languages if kind == "ernie_m" else {}
        return cls.from_pretrained(zoo_model_dir(kind, head, **config))

    return load


LEARNS = {"Btmlm": "ErnieM", "Camlm": "ErnieM", "CaMlmPairs": "Veco", "CaMlmSegments": "Veco"}  # others: XlmAlign
EXAMPLE = {"text": "Das Haus.", "language": "de", "source": "A house.", "target": "Ein Haus.", "links": "0-0 1-1"}


@pytest.mark.parametrize("name", sorted(set(crosslingual_zoo.__all__) - RUNS - {"ErnieMTokenizer"}))
def test_public_names_examples_run(name, names_of_examples, model_of, zoo_model_dir, tmp_path, monkeypatch):
    value, given = getattr(crosslingual_zoo, name), dict(names_of_examples)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intfloat").mkdir()
    (tmp_path / "intfloat/multilingual-e5-small").symlink_to(zoo_model_dir("xlm_align", "Model"))
    monkeypatch.setattr(word_alignment, "DEFAULT_MODEL", "")  # this folder has another model, which no adapter fits
    (tmp_path / "sample_corpus").symlink_to(Path(__file__).parents[1] / "sample_corpus")
    if name.endswith("Collator"):
        prefix = LEARNS.get(name.removesuffix("Collator"), "XlmAlign")
        given["model"] = model_of(getattr(crosslingual_zoo, f"{prefix}ForPreTraining"))
        languages = {"languages": ["de", "en"]} if name == "BtmlmCollator" else {}
        given["examples"] = [EXAMPLE]
        given["collate"] = value(given["tokenizer"], **languages)
    elif inspect.isclass(value) and issubclass(value, PreTrainedModel) and name != "VecoForConditionalGeneration":
        given["model"] = model_of(value)
    run_examples(name, given)


@pytest.mark.slow
def test_public_names_examples_of_runs(names_of_examples, sample_tokenizer_dir, tmp_path, monkeypatch):
    """From pre-training to a push that changes nothing, in the order in which a user comes to them."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sample_tokenizer_dir, tmp_path / "runs/sample_tokenizer")
    for name in ("pretrain", "finetune", "Results", "read_results"):
        run_examples(name, names_of_examples)
    command = json.loads((tmp_path / "runs/short/run.json").read_text())["sessions"][0]["command"]
    assert command.startswith("pretraining/run.py --config pretraining/recipes/xlm_align/smoke.yaml phases.0.steps=20")
    arguments = ["--model", "runs/short/model", "--repo", "owner/name", "--license", "apache-2.0"]
    card.main(arguments)
    run_examples("push", names_of_examples)


def sessions(folder: Path) -> list[dict]:
    return json.loads((folder / "run.json").read_text())["sessions"]


def test_pretrain_saves_at_ctrl_c_is_resumed_and_leaves_the_log_as_it_was(small_recipe, tmp_path, monkeypatch):
    root = logging.getLogger()
    level = root.level
    handlers = list(root.handlers)
    step = RunBar.step

    def interrupted(self, number, *arguments):
        step(self, number, *arguments)
        if number == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(RunBar, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            crosslingual_zoo.pretrain(small_recipe)
    assert (root.level, root.handlers) == (level, handlers)
    crosslingual_zoo.pretrain(small_recipe, resume=True)
    assert (root.level, root.handlers) == (level, handlers)
    first, second = sessions(tmp_path / "run")
    assert second["command"] == f"{first['command']} --resume"
    assert first["resumed_from"] is None and second["resumed_from"] == "step-3"
