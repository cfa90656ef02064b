"""`python -m crosslingual_zoo.pretraining.plan` and a dry run: their tables agree with training."""

import pytest
import torch
from rich.table import Table
from transformers import AutoConfig, AutoModelForMaskedLM

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
def test_supported_objectives_of_an_architecture(kind, without, sample_tokenizer, tmp_path, capsys):
    ids = {name: getattr(sample_tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    config = AutoConfig.for_model(kind, vocab_size=len(sample_tokenizer), **shape, **ids)
    with torch.random.fork_rng():
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    sample_tokenizer.save_pretrained(tmp_path)
    checkpoint = Pretrained(str(tmp_path), "CHECKPOINT")
    can = {name for model in MODEL_TYPES for name in objectives_of(model, checkpoint)[0].split(", ")}
    assert {"mlm", "tlm", "dwa", "camlm", "btmlm", "kd", "ca_mlm_segments", "ca_mlm_pairs"} - can == without
    plan.main([str(tmp_path)])
    assert "encoder and LM head: nothing" in capsys.readouterr().out


def test_dry_run_draws_by_estimated_sizes_whatever_it_prints(files, recipe_of, sample_tokenizer_dir, monkeypatch):
    """The sizes of all lengths count: both phases draw nearly all rows from the larger corpus."""
    monkeypatch.setattr(plan, "ROWS_READ", 20)
    large = files.lines("large.txt", ["Rain and wind, and sun and snow, and rain again."] * 30)
    small = files.lines("small.txt", ["Sun."] * 10)
    config = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    phases = [
        {
            "name": name,
            "steps": 1,
            "learning_rate": 1e-3,
            "objectives": {"mlm": {"batch_size": 64, "max_length": length}},
        }
        for name, length in (("whole", 64), ("cut", 10))
    ]
    monolingual = [{"language": "en", "path": large, "max_rows": 10**6}, {"language": "de", "path": small}]
    model = {"type": "metaxlm", "config": config}
    recipe = recipe_of(
        model=model, phases=phases, monolingual=monolingual, tokenizer=str(sample_tokenizer_dir), alpha=1.0
    )
    shares, sizes = [], []

    def noted(corpora, alpha):
        shares.append(corpus_probabilities(corpora, alpha).tolist())
        sizes.append([corpus.size for corpus in corpora])
        return corpus_probabilities(corpora, alpha)

    monkeypatch.setattr(sampling, "corpus_probabilities", noted)
    plan.show_plan(recipe)
    assert sizes[0] == [10**6, 10] and sizes[1][0] >= 2 * 10**6 and sizes[1][1] == 10
    assert all(share[0] > 0.999 for share in shares)
    monkeypatch.setattr(plan, "_corpora_table", lambda *given: Table())
    printed = list(sizes)
    sizes.clear()
    plan.show_plan(recipe)
    assert sizes == printed
