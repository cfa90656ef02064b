"""finetuning/run.py from the command line to results, resumed; errors."""

import contextlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from finetuning.recipe import Recipe
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.by_language import mean_cross_entropy
from finetuning.tasks.question_answering.task import span_cross_entropy
from finetuning.tasks.registry import task_of
from finetuning.trainer import FineTuningTrainer
from finetuning.training import last_complete_checkpoint
from tests.finetuning.tasks import Killed, record_of, weights
from zoo_core.masking import IGNORED
from zoo_core.recipes import load_recipe
from zoo_core.run_folders import LOCK, run_lock


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
    rows = [json.loads(line) for line in (corpus / "de" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    batch = tokenizer([row["text"] for row in rows], padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        predicted = model(**batch).logits.argmax(-1).tolist()
    right = sum(model.config.id2label[i] == row["topic"] for i, row in zip(predicted, rows, strict=True))
    return 100 * right / len(rows)


def test_run_writes_results(topics_run):
    out, _ = topics_run
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "scores.png", "seed-1", "seed-2",
    }  # fmt: skip
    results = read_results(out)
    assert results["seeds"] == [1, 2] and list(results.languages) == ["en", "de", "zh"]
    for entry in results.languages.values():
        assert entry["mean"] == pytest.approx(sum(entry["scores"]) / 2)
        assert entry["sd"] == pytest.approx(abs(entry["scores"][0] - entry["scores"][1]) / 2**0.5)
    means = {language: entry["mean"] for language, entry in results.languages.items()}
    assert results.average["mean"] == pytest.approx(sum(means.values()) / 3)
    assert results.transfer_gap == pytest.approx(means["en"] - (means["de"] + means["zh"]) / 2)
    assert results["protocol"]["selection"]["rule"] == "source_dev"
    assert results["protocol"]["selection"]["rows"] == {"en": 24}
    assert results["hyperparameters"]["updates"] == [5, 5]

    recipe = load_recipe(Recipe, str(out / "recipe.yaml"), [])
    assert recipe.evaluation[0].languages == ["en", "de", "zh"] and recipe.seeds == [1, 2]


def test_run_scores_are_those_of_the_saved_model(topics_run, sample_corpus_dir):
    folder = topics_run[0] / "seed-1" / "model"
    recorded = record_of(folder.parent)
    assert recorded["scores"]["de"] == pytest.approx(accuracy_of(folder, sample_corpus_dir))
    # which checkpoint was chosen, and that it was the best of those looked at
    looked_at = {
        entry["step"]: entry["eval_en_accuracy"] for entry in recorded["history"] if "eval_en_accuracy" in entry
    }
    assert recorded["selection_score"] == max(looked_at.values()) == looked_at[recorded["selected_step"]]
    assert AutoConfig.from_pretrained(folder).fine_tuned_on == ["topics (zero_shot)"]
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert "local_files_only" not in settings and not (folder / "training_args.bin").exists()
    assert not (folder.parent / "checkpoints").exists()


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
    before = (out / "seed-1" / "scores.json").stat().st_mtime_ns
    assert run(None, "--resume") == [2, 3, 4]
    assert before == (out / "seed-1" / "scores.json").stat().st_mtime_ns
    for seed in ("seed-1", "seed-2"):
        whole, resumed = weights(topics_run[0] / seed), weights(out / seed)
        assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert read_results(topics_run[0])["scores"] == read_results(out)["scores"]
    assert len(json.loads((out / "run.json").read_text())["sessions"]) == 3
    assert run(None, "seeds=[1, 2, 3]", "--resume") == [0, 1, 2, 3, 4]
    assert read_results(out)["seeds"] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlm_align on modernbert", "ernie_m on eurobert", "metaxlm on deberta-v2"])
def test_run_of_another_architecture(name, topics, zoo_model_dir, sample_corpus_dir, tmp_path):
    encoder = zoo_model_dir(name)
    main([*topics, f"model={encoder}", "seeds=[1]", "training.layerwise_decay=0.9"])
    results, folder = read_results(tmp_path / "out"), tmp_path / "out" / "seed-1" / "model"
    before, after = (load_file(at / "model.safetensors") for at in (encoder, folder))
    layers = {name for name in before if ".backbone." in name}
    assert layers <= after.keys() and any(not torch.equal(before[name], after[name]) for name in layers)
    assert results.languages["de"]["mean"] == pytest.approx(accuracy_of(folder, sample_corpus_dir))


@pytest.mark.parametrize(
    ("name", "settings", "plug_in"),
    [
        ("veco", {"type_vocab_size": 2}, False),
        ("veco", {"type_vocab_size": 2}, True),
        ("xlm_align on deberta-v2", {"backbone": {"type_vocab_size": 2}}, False),
        ("veco", {}, True),
        ("xlm_align on modernbert", {}, False),
    ],
)
def test_encode_gives_types_of_tokens_to_a_model_that_has_them(
    name, settings, plug_in, topics, zoo_model_dir, sample_tokenizer, write
):
    encoder = zoo_model_dir(name, copy=True, **settings)
    save_bert_s_pairs(sample_tokenizer, encoder)
    columns = ["text_columns: [a, b]", *(["translation_columns: [c, d]"] if plug_in else [])]
    tables = []
    for part in ("train", "evaluation"):
        rows = [{"a": f"{part} {i}", "b": "x", "c": f"Haus {i}", "d": "y", "label": "xy"[i % 2]} for i in range(4)]
        tables.append(f"{part}=[{{path: {write(part, rows)}, languages: [en], {', '.join(columns)}}}]")
    setting = ["setting=translate_train_all", "translations_from=Anna", "plug_in=true"] if plug_in else []
    task = task_of(load_recipe(Recipe, None, [*topics, f"model={encoder}", *tables, "selection=last", *setting]))
    task.begin()
    batch = task.encode(task.read()).train[0]
    fields = {"token_type_ids"} | ({"translation_token_type_ids"} if plug_in else set())
    assert {field for field in batch if "token_type" in field} == (fields if settings else set())
    assert all(set(batch[field]) == {0, 1} for field in fields if settings)


def save_bert_s_pairs(tokenizer, folder):
    """The tokenizer with types of tokens as BERT's: 1 for the second text, and among what it returns by default."""
    definition = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    definition.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=special
    )
    names = ["input_ids", "attention_mask", "token_type_ids"]
    settings = dict(tokenizer.special_tokens_map, model_input_names=names, model_max_length=tokenizer.model_max_length)
    PreTrainedTokenizerFast(tokenizer_object=definition, **settings).save_pretrained(folder)


def test_last_complete_checkpoint(tmp_path):
    for step, state in ((2, '{"global_step": 2}'), (10, '{"global_s'), (12, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state:
            (folder / "trainer_state.json").write_text(state)
    for name in ("checkpoint-12.bak", "checkpoint-best", "my-checkpoint-14"):
        shutil.copytree(tmp_path / "checkpoint-2", tmp_path / name)
    (tmp_path / "checkpoint-13").touch()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    assert last_complete_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", [".git/config", ".notes.tmp", ".gitkeep", "sweep.txt", "sweeps/a", "seed-1/model/a"])
def test_run_folder_refuses_a_folder_with_files(topics, tmp_path, refused, name):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    held = name.partition("/")[0]
    assert f"holds {held}" in refused(topics)
    assert "holds no run" in refused([*topics, "--resume"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == [held] and file.read_text() == "precious"


def test_run_folder_is_locked(topics, tmp_path, refused):
    with run_lock(tmp_path / "out"):
        for arguments in ([], ["--resume"], ["--sweep", "sweep={max_length: [16, 24]}"]):
            assert "in use" in refused([*topics, *arguments])
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_run_folder_of_a_killed_start(topics, tmp_path, refused, options):
    (tmp_path / "out").mkdir()
    for name in (LOCK, ".run.json.71.tmp", ".recipe.yaml.71.tmp"):
        (tmp_path / "out" / name).touch()
    (tmp_path / "out" / "run.json").write_text('{"of": "another program"}')
    assert "run.json" in refused([*topics, *options])
    (tmp_path / "out" / "run.json").write_text('{"sessions": [], "model": {}, "data": {}}')  # before recipe.yaml
    main([*topics, *options, "seeds=[1]", "training.max_steps=1"])
    assert (tmp_path / "out" / "results.json").exists() and not (tmp_path / "out" / LOCK).exists()


@pytest.mark.slow
def test_run_folder_refuses_another_run(topics, tmp_path, tiny_model, sample_corpus_dir, change_weights, refused):
    model, corpus = shutil.copytree(tiny_model, tmp_path / "model"), shutil.copytree(sample_corpus_dir, tmp_path / "in")
    test = f"{{path: '{corpus}/{{language}}/test.jsonl', languages: [en, zh], label_column: topic}}"
    topics = [*topics, f"model={model}", f"evaluation=[{test}]", "seeds=[1]", "training.max_steps=1"]
    main(topics)
    assert "--resume" in refused(topics)
    message = refused([*topics, "--resume", "training.batch_size=24", "max_length=20"])
    assert "training.batch_size: 48 -> 24; max_length: 24 -> 20" in message
    file = corpus / "zh" / "test.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[1:]), encoding="utf-8")
    assert "evaluation_data.1.rows: 60 -> 59" in refused([*topics, "--resume"])
    change_weights(model)
    assert "another model" in refused([*topics, "--resume"])


def test_describe_model_refuses(topics, tmp_path, tiny_model, sample_tokenizer, refused):
    bare, small, padding, foreign = (tmp_path / name for name in ("bare", "small", "padding", "foreign"))
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("*token*", "*sentencepiece*"))
    for folder in (small, padding, foreign):
        shutil.copytree(tiny_model, folder)
    XLMRobertaForMaskedLM(XLMRobertaConfig.from_pretrained(tiny_model, vocab_size=500)).save_pretrained(small)
    config = padding / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 1', '"pad_token_id": 0'))
    for model, named in (
        (bare, "tokenizer"),
        (tmp_path, ""),
        (small, str(len(sample_tokenizer))),
        (padding, "padding id 1"),
    ):
        assert str(model) in (message := refused([*topics, f"model={model}"])) and named in message
    tensors = load_file(foreign / "model.safetensors")
    dense = "encoder.layer.1.output.dense.weight"
    wrapped = {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}
    reshaped = tensors | {f"roberta.{dense}": torch.zeros(3, 3)}
    for broken, count, named in ((wrapped, 37, "_orig_mod."), (reshaped, 1, dense)):
        save_file(broken, foreign / "model.safetensors", {"format": "pt"})
        message = refused([*topics, f"model={foreign}"])
        assert f"lacks {count} weight" in message and named in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_run_from_a_model_of_an_earlier_task(topics, topics_run, tmp_path):
    first = topics_run[0] / "seed-1" / "model"
    # the head of the second task has another number of labels
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"word {i}\t{'ab'[i % 2]}\n" for i in range(20)))
    tables = [
        f"train=[{{path: {rows}}}]",
        f"evaluation=[{{path: {shutil.copy(rows, tmp_path / 'de.tsv')}, languages: [de]}}]",
    ]
    main([*topics, *tables, f"model={first}", "task=second", "seeds=[1]", "training.max_steps=1"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["fine_tuned_before"] == ["topics (zero_shot)"]
    assert results["protocol"]["labels"] == ["a", "b"]
    assert results.transfer_gap is None


def test_arguments_refuses_an_uneven_batch(topics, refused):
    message = refused([*topics, "training.batch_size=10", "training.gradient_accumulation_steps=4"])
    assert "training.batch_size is 10" in message and "multiple of 4" in message


def test_mean_cross_entropy_over_a_step():
    logits, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
    whole = mean_cross_entropy({"logits": logits}, labels)
    parts = [mean_cross_entropy({"logits": logits[a:b]}, labels[a:b], torch.tensor(6)) for a, b in ((0, 2), (2, 6))]
    assert torch.allclose(whole, sum(parts))


def test_mean_cross_entropy_without_labels():
    logits = torch.randn(3, 4, requires_grad=True)
    none, items = torch.full((3,), IGNORED), torch.tensor(6)
    of_translations = torch.nn.functional.cross_entropy(logits, none)  # NaN, as models return it
    spans = {"start_logits": logits, "end_logits": logits, "loss": of_translations}
    losses = [
        mean_cross_entropy({"logits": logits}, none, items),
        mean_cross_entropy({"logits": logits, "loss": of_translations}, none, items, torch.tensor(0.0)),
        span_cross_entropy(spans, none[:, None].expand(3, 2), items, torch.tensor(0.0)),
    ]
    sum(losses).backward()
    assert torch.stack(losses).eq(0).all() and logits.grad.eq(0).all()
