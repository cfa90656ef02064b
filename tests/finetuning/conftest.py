"""A tiny XLM-R with the sample corpus' tokenizer, and a recipe that fine-tunes it in a second."""

import pytest
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
    """Overrides of a recipe: topics of the sample corpus, English to German and Chinese, two seeds of five updates."""
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
