"""`python -m crosslingual_zoo.pretraining.plan` and a dry run: their tables agree with training."""

import pytest
from rich.table import Table
from transformers import AutoModelForMaskedLM

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.pretraining import plan
from crosslingual_zoo.pretraining.data import sampling
from crosslingual_zoo.pretraining.data.languages import corpus_probabilities
from crosslingual_zoo.pretraining.plan import objectives_of
from crosslingual_zoo.pretraining.start.pretrained import Pretrained


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        ("modernbert", {"ca_mlm_segments", "ca_mlm_pairs"}),
        ("deberta-v2", {"camlm", "btmlm", "ca_mlm_segments", "ca_mlm_pairs"}),
        ("bert", set()),
    ],
)
def test_supported_objectives_of_an_architecture(kind, without, library_model_dir, capsys):
    folder = str(library_model_dir(kind, AutoModelForMaskedLM))
    checkpoint = Pretrained(folder, "CHECKPOINT")
    supported = set()
    for model_type in MODEL_TYPES:
        supported |= set(objectives_of(model_type, checkpoint)[0].split(", "))
    assert {"mlm", "tlm", "dwa", "camlm", "btmlm", "kd", "ca_mlm_segments", "ca_mlm_pairs"} - supported == without
    plan.main([folder])
    assert "encoder and LM head: nothing" in capsys.readouterr().out


def test_dry_run_draws_by_estimated_sizes_whatever_it_prints(files, recipe_of, sample_tokenizer_dir, monkeypatch):
    """The sizes of all lengths count: both phases draw nearly all rows from the larger corpus."""
    monkeypatch.setattr(plan, "ROWS_READ", 20)
    large = files.lines("large.txt", ["Rain and wind, and sun and snow, and rain again."] * 30)
    small = files.lines("small.txt", ["Sun."] * 10)
    config = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    step = {"steps": 1, "learning_rate": 1e-3}
    phases = [
        step | {"name": "whole", "objectives": {"mlm": {"batch_size": 64, "max_length": 64}}},
        step | {"name": "cut", "objectives": {"mlm": {"batch_size": 64, "max_length": 10}}},
    ]
    monolingual = [{"language": "en", "path": large, "max_rows": 10**6}, {"language": "de", "path": small}]
    model = {"type": "metaxlm", "config": config}
    recipe = recipe_of(
        model=model, phases=phases, monolingual=monolingual, tokenizer=str(sample_tokenizer_dir), alpha=1.0
    )
    sizes = []

    def noted(corpora, alpha):
        probabilities = corpus_probabilities(corpora, alpha)
        assert probabilities[0] > 0.999
        sizes.append([corpus.size for corpus in corpora])
        return probabilities

    monkeypatch.setattr(sampling, "corpus_probabilities", noted)
    plan.show_plan(recipe)
    printed = list(sizes)
    assert printed[0] == [10**6, 10]
    large_when_cut, small_when_cut = printed[1]
    assert large_when_cut >= 2 * 10**6
    assert small_when_cut == 10
    sizes.clear()
    monkeypatch.setattr(plan, "_corpora_table", lambda *arguments: Table())
    plan.show_plan(recipe)
    assert sizes == printed
