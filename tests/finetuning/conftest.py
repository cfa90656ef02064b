"""A tiny XLM-R with the sample corpus' tokenizer, and a recipe that fine-tunes it in a second."""

import subprocess
import sys

import pytest
from datasets import Dataset
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM, set_seed


@pytest.fixture(scope="session")
def tiny_model(sample_tokenizer, tmp_path_factory):
    """Folder of a random model of 2 layers of 32, as pre-training would leave it: a masked-LM head, a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    set_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(sample_tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    XLMRobertaForMaskedLM(config).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def topics(sample_corpus_dir, tiny_model, tmp_path):
    """Overrides of a recipe: topics of the sample corpus, English to German and Chinese, two seeds of five steps."""
    table = f"path: {sample_corpus_dir}, label_column: topic"
    return [
        f"model={tiny_model}",
        f"output_dir={tmp_path / 'out'}",
        "task=topics",
        f"train=[{{{table}, config: en}}]",
        f"evaluation=[{{{table}, config: '{{language}}', languages: [en, de, zh]}}]",
        "selection=source_dev",
        "evaluate_every_steps=2",
        "max_length=24",
        "training.learning_rate=1e-2",
        "training.batch_size=48",
        "training.epochs=1",
        "seeds=[1, 2]",
    ]


@pytest.fixture(scope="session")
def tiny_veco(sample_tokenizer, tmp_path_factory):
    """Folder of a random VECO of 2 layers of 32, as pre-training would leave it."""
    from modeling.configuration_veco import VecoConfig
    from modeling.modeling_veco import VecoForPreTraining

    folder = tmp_path_factory.mktemp("tiny_veco") / "model"
    set_seed(0)
    config = VecoConfig(
        vocab_size=len(sample_tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
    )
    VecoForPreTraining(config).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def plug_in_veco(sample_tokenizer, tmp_path_factory):
    """Folder of a random VECO of 2 layers of 32, as pre-training would leave it, that tells texts apart."""
    from modeling.configuration_veco import VecoConfig
    from modeling.modeling_veco import VecoForPreTraining

    folder = tmp_path_factory.mktemp("plug_in_veco") / "model"
    set_seed(0)
    config = VecoConfig(
        vocab_size=len(sample_tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=66,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,  # texts differ from the start
    )
    VecoForPreTraining(config).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def captions(sample_corpus_dir, tiny_veco, tmp_path):
    """Overrides of a translation recipe: the sample corpus, English to German, one seed of six steps."""
    table = (
        f"path: {sample_corpus_dir}, config: en, source_column: text, target_column: text, join_on: id, "
        f"target: {{path: {sample_corpus_dir}, config: de, split: SPLIT}}, split: SPLIT"
    )
    return [
        "kind=translation",
        f"model={tiny_veco}",
        f"output_dir={tmp_path / 'out'}",
        "task=sample",
        "source_language=en",
        "target_language=de",
        f"train=[{{{table.replace('SPLIT', 'train')}}}]",
        f"test=[{{{table.replace('SPLIT', 'test')}}}]",
        "max_source_length=48",
        "max_target_length=48",
        "max_test_examples=3",
        "training.max_tokens=1000",
        "training.learning_rate=1e-2",
        "training.max_steps=6",
        "evaluate_every_steps=2",
        "generation.beams=2",
    ]


@pytest.fixture
def dev_captions(captions):
    """The overrides of `captions` with the test's second half as development pairs, and its first as test."""
    test = next(item for item in captions if item.startswith("test="))
    halves = [test.replace("split: test", f"split: 'test[{part}]'") for part in (":30", "30:")]
    return [*captions, halves[0], "dev" + halves[1].removeprefix("test"), "max_dev_examples=12"]


@pytest.fixture
def write(tmp_path):
    """write(name, rows, features=None) -> path of a parquet file."""

    def write_rows(name, rows, features=None):
        path = tmp_path / f"{name}.parquet"
        Dataset.from_list(rows, features=features).to_parquet(path)
        return str(path)

    return write_rows


@pytest.fixture
def refused(capsys):
    """refused(arguments) -> the message with which finetuning/run.py refuses them."""
    from finetuning.run import main

    def message(arguments):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        return capsys.readouterr().err

    return message


@pytest.fixture
def in_two_processes(tmp_path):
    """in_two_processes(*arguments) -> finetuning/run.py with them, ended, in two processes that know each other."""
    program = (
        "import torch.multiprocessing as mp, os, sys\n"
        "def work(rank, arguments, port):\n"
        "    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',"
        " MASTER_PORT=port, ACCELERATE_USE_CPU='true')\n"
        "    from finetuning.run import main\n"
        "    main(arguments)\n"
        "if __name__ == '__main__':\n"
        "    import socket\n"
        "    with socket.socket() as s:\n"
        "        s.bind(('127.0.0.1', 0)); port = str(s.getsockname()[1])\n"
        "    mp.spawn(work, (sys.argv[1:], port), nprocs=2)\n"
    )
    script = tmp_path / "two.py"
    script.write_text(program)

    def run(*arguments, check=True):
        command = [sys.executable, script, *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, encoding="utf-8")

    return run
