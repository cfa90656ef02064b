"""finetuning/run.py from the command line to results, resumed and recorded; what is refused."""

import contextlib
import math
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Trainer,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from crosslingual_zoo.finetuning import run_task
from crosslingual_zoo.finetuning.models import best_seed
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.seed import finite
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from crosslingual_zoo.zoo_core.run_folders import LOCK, run_lock
from tests.finetuning.labeled_rows import read_rows
from tests.finetuning.plug_in_kinds import PLUG_IN
from tests.finetuning.tasks import Killed, assert_same_seed, evaluations, record_of
from tests.finetuning.test_compare import made_up


def kill_at(patch, update, calls):
    """From now on, training stops before its `update`-th step, counted over all seeds in `calls`."""
    step = FineTuningTrainer.training_step

    def counted(self, *args, **kwargs):
        calls.append(self.state.global_step)
        if len(calls) == update:
            raise Killed
        return step(self, *args, **kwargs)

    patch.setattr(FineTuningTrainer, "training_step", counted)


def accuracy_of(folder, corpus):
    """Of the saved model on the German rows, in percent."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    rows = read_rows(corpus / "de" / "test.jsonl")
    batch = tokenizer([row["text"] for row in rows], padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        predicted = model(**batch).logits.argmax(-1)
    gold = torch.tensor([model.config.label2id[row["topic"]] for row in rows])
    return 100 * (predicted == gold).double().mean().item()


def test_run_scores_are_those_of_the_saved_model(topics_run, sample_corpus_dir, tmp_path):
    folder = topics_run / "seed-2" / "model"
    recorded = record_of(folder.parent)
    assert recorded["scores"]["de"] == pytest.approx(accuracy_of(folder, sample_corpus_dir))
    # the best of the checkpoints that were looked at, and not the last one
    looked_at = evaluations(folder.parent)
    best = looked_at[recorded["selected_step"]]
    highest = max(entry["eval_en_accuracy"] for entry in looked_at.values())
    assert recorded["selection_score"] == best["eval_en_accuracy"] == highest
    assert best["step"] < recorded["steps"]
    task = task_of(load_recipe(Recipe, str(topics_run / "recipe.yaml"), [f"model={folder}"]))
    task.open()
    data = task.encode(task.read())
    trainer = FineTuningTrainer(task, task.load_model(str(folder), 2, data), data, task.arguments(2, tmp_path))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best["eval_loss"])
    assert AutoConfig.from_pretrained(folder).fine_tuned_on == ["topics (zero_shot)"]


@pytest.mark.slow
def test_resume_of_a_killed_run_and_further_seeds(topics, topics_run, tmp_path, monkeypatch):
    def run(update, *more):
        calls = []
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kill_at(patch, update, calls)
            main([*topics, *more])
        return calls

    # 5 steps a seed, with checkpoints at steps 2 and 4: a killed seed resumes from there
    assert run(4) == [0, 1, 2, 3]
    assert run(7, "--resume") == [2, 3, 4] + [0, 1, 2, 3]
    out = tmp_path / "out"
    assert run(None, "--resume") == [2, 3, 4]
    for seed in ("seed-1", "seed-2"):
        assert_same_seed(out / seed, topics_run / seed)
    assert run(None, "seeds=[1, 2, 3]", "--resume") == [0, 1, 2, 3, 4]
    assert read_results(out)["seeds"] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlm_align on modernbert", "ernie_m on eurobert", "metaxlm on deberta-v2"])
def test_run_of_another_architecture(name, topics, zoo_model_dir, sample_corpus_dir, tmp_path):
    encoder = zoo_model_dir(name)
    main([*topics, f"model={encoder}", "seeds=[1]", "training.layerwise_decay=0.9"])
    results = read_results(tmp_path / "out")
    folder = tmp_path / "out" / "seed-1" / "model"
    before = load_file(encoder / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    layers = {name for name in before if ".backbone." in name}
    assert layers <= after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in layers)
    assert results.languages["de"]["mean"] == pytest.approx(accuracy_of(folder, sample_corpus_dir))


TYPED = {"token_type_ids": {0, 1}, "translation_token_type_ids": {0, 1}}


@pytest.fixture
def bert_s_pairs(sample_tokenizer):
    """The tokenizer with types of tokens as BERT's: 1 for the second text, and among what it returns by default."""
    definition = Tokenizer.from_str(sample_tokenizer.backend_tokenizer.to_str())
    special = [(token, sample_tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    definition.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=special
    )
    settings = dict(sample_tokenizer.special_tokens_map, model_max_length=sample_tokenizer.model_max_length)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    return PreTrainedTokenizerFast(tokenizer_object=definition, model_input_names=names, **settings)


@pytest.mark.parametrize(("types", "fields"), [(1, []), (2, ["token_type_ids", "translation_token_type_ids"])])
def test_encode_gives_types_of_tokens_to_a_model_that_has_them(
    types, fields, topics, zoo_model_dir, bert_s_pairs, write
):
    encoder = zoo_model_dir("veco", copy=True, type_vocab_size=types)
    bert_s_pairs.save_pretrained(encoder)
    rows = [{"a": f"text {i}", "b": "x", "c": f"Haus {i}", "d": "y", "label": "xy"[i % 2]} for i in range(4)]
    columns = "text_columns: [a, b], translation_columns: [c, d]"
    table = f"[{{path: {write('rows', rows)}, languages: [en], {columns}}}]"
    tables = [f"train={table}", f"evaluation={table}"]
    task = task_of(load_recipe(Recipe, None, [*topics, f"model={encoder}", *tables, "selection=last", *PLUG_IN]))
    task.open()
    batch = task.encode(task.read()).train[0]
    assert sorted(name for name in batch if "token_type" in name) == fields
    assert all(set(batch[name]) == {0, 1} for name in fields)


def test_run_folder_refuses_files_of_others_and_a_second_run(topics, tmp_path, refused):
    file = tmp_path / "out" / ".notes.tmp"
    file.parent.mkdir()
    file.write_text("precious")
    assert "holds .notes.tmp" in refused(topics)
    assert "holds no run" in refused([*topics, "--resume"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == [file.name]
    assert file.read_text() == "precious"
    file.unlink()
    with run_lock(tmp_path / "out"):
        for arguments in ([], ["--resume"], ["--sweep", "sweep={max_length: [16, 24]}"]):
            assert "in use" in refused([*topics, *arguments])
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]


def test_resume_before_the_run_begins_it(topics, tmp_path):
    main([*topics, "--resume", "seeds=[1]", "training.max_steps=1"])
    assert (tmp_path / "out" / "results.json").exists()


LACK_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ...\nmore"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB). Tried to allocate 1 GB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.fixture
def fails(monkeypatch):
    """fails(error): every run raises the error."""

    def patch(error):
        def run(recipe, resume, command):
            raise error

        monkeypatch.setattr(run_task, "run_task", run)

    return patch


@pytest.mark.parametrize("error", LACK_OF_MEMORY, ids=lambda error: str(error)[:12])
@pytest.mark.parametrize(("kind", "field"), [("topics", "training.batch_size"), ("captions", "training.max_tokens")])
def test_run_without_enough_memory_names_the_field_to_lower(error, kind, field, request, refused, fails):
    fails(error)
    assert field in refused(request.getfixturevalue(kind)).splitlines()[-1]


def test_run_keeps_the_traceback_of_other_errors(topics, fails):
    fails(RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        main(topics)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_run_folder_of_a_killed_start(topics, tmp_path, refused, options):
    (tmp_path / "out").mkdir()
    for name in (LOCK, ".run.json.71.tmp", ".recipe.yaml.71.tmp"):
        (tmp_path / "out" / name).touch()
    write_json(tmp_path / "out" / "run.json", {"of": "another program"})
    assert "run.json" in refused([*topics, *options])
    write_json(tmp_path / "out" / "run.json", {"sessions": [], "model": {}, "data": {}})  # killed before recipe.yaml
    main([*topics, *options, "seeds=[1]", "training.max_steps=1"])
    assert (tmp_path / "out" / "results.json").exists()
    assert not (tmp_path / "out" / LOCK).exists()


def test_describe_model_refuses(topics, tmp_path, tiny_model, sample_tokenizer, refused):
    small = shutil.copytree(tiny_model, tmp_path / "small")
    XLMRobertaForMaskedLM(XLMRobertaConfig.from_pretrained(tiny_model, vocab_size=500)).save_pretrained(small)
    padding = shutil.copytree(tiny_model, tmp_path / "padding")
    config = padding / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 1', '"pad_token_id": 0'))
    wrapped = shutil.copytree(tiny_model, tmp_path / "wrapped")
    tensors = load_file(wrapped / "model.safetensors")
    save_file({f"_orig_mod.{name}": weight for name, weight in tensors.items()}, wrapped / "model.safetensors")
    named = {small: str(len(sample_tokenizer)), padding: "padding id 1", wrapped: "lacks 37 weight"}
    for folder, text in named.items():
        assert text in refused([*topics, f"model={folder}"])


@pytest.mark.parametrize(
    ("selection", "seed"),
    [
        ({"scores": [50.0, 60.0], "losses": [0.1, 0.5]}, 4),
        ({"scores": [60.0, 60.0], "losses": [None, 0.5]}, 4),
        ({"scores": [60.0, 60.0], "losses": [0.5, 0.4]}, 4),
        ({"scores": [60.0, 60.0], "losses": [0.5, 0.5]}, 3),
        ({"scores": [60.0, 50.0], "losses": [0.5, 0.1]}, 3),
        ({"scores": [None, None], "losses": [None, None]}, 3),
    ],
)
def test_best_seed(selection, seed, tmp_path):
    finished = made_up("xnli", {"accuracy": {"en": [80.0, 70.0]}}, [3, 4], selection=selection)
    write_json(tmp_path / "results.json", finished)
    for number in (3, 4):
        write_json(tmp_path / f"seed-{number}" / "model" / "config.json", {})
    assert best_seed(str(tmp_path), "m", "sha256:0")[1]["seed"] == seed


def test_arguments_are_those_of_the_recipe(topics, tmp_path):
    fields = "weight_decay=0.03 epsilon=1e-5 betas=[0.8,0.95] warmup_steps=0.2 schedule=cosine max_grad_norm=0.7"
    fields += " gradient_accumulation_steps=4"
    recipe = load_recipe(Recipe, None, [*topics, *(f"training.{field}" for field in fields.split())])
    arguments = task_of(recipe).arguments(5, tmp_path)
    expected = dict(
        seed=5, data_seed=5, learning_rate=1e-3, weight_decay=0.03, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5,
        max_grad_norm=0.7, warmup_steps=0.2, lr_scheduler_type="cosine",
        per_device_train_batch_size=12, gradient_accumulation_steps=4,
    )  # fmt: skip
    assert {name: getattr(arguments, name) for name in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["topics", "captions"])
def test_run_in_bf16_with_checkpointing(kind, request, monkeypatch):
    seen = []
    step = Trainer.training_step

    def watched(self, model, *args, **kwargs):
        recomputed = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        seen.append((self.accelerator.mixed_precision, recomputed))
        return step(self, model, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", watched)
    short = ["seeds=[1]", "training.max_steps=1", "training.precision=bf16", "training.gradient_checkpointing=true"]
    main([*request.getfixturevalue(kind), *short])
    assert seen == [("bf16", True)]


def test_finite_replaces_what_json_lacks():
    assert finite({"a": [1.5, -math.inf, {"b": math.nan}], "c": "nan"}) == {"a": [1.5, None, {"b": None}], "c": "nan"}


def test_help_needs_no_torch():
    code = (
        "import sys, crosslingual_zoo.finetuning.run; sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_is_tracked(topics, tmp_path):
    main([*topics, "seeds=[1]", "tracker=tensorboard"])
    seed = tmp_path / "out" / "seed-1"
    (folder,) = (seed / "checkpoints" / "runs").iterdir()
    tracked = EventAccumulator(str(folder))
    tracked.Reload()
    scores = {scalar.step: scalar.value for scalar in tracked.Scalars("eval/en_accuracy")}
    assert scores == pytest.approx({step: entry["eval_en_accuracy"] for step, entry in evaluations(seed).items()})


def test_check_data_counts_and_writes_nothing(topics, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main([*topics, "--check_data", "max_length=12"])
    counts = re.findall(r"│ (train|dev|evaluation) +│ +(\w+) +│ +(\d+) ", capsys.readouterr().out)
    assert counts[:5] == [
        ("train", "all", "216"),
        ("dev", "en", "24"),
        ("evaluation", "en", "60"),
        ("evaluation", "de", "60"),
        ("evaluation", "zh", "60"),
    ]
    assert not (tmp_path / "out").exists()
