"""A start from a model of one language: what is carried over, and that frozen weights do not change."""

import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertForMaskedLM

from crosslingual_zoo.modeling.backbone import ARCHITECTURES
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.start.meta_pretrained import (
    BODY,
    EMBEDDINGS,
    HEAD,
    POSITIONS,
    SPECIAL_IDS,
    TOKEN_TYPES,
)
from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
from tests.pretraining.run_folders import adam_of, weights_of

WORDS = f"{EMBEDDINGS}word_embeddings.weight"
WORDS_OF_TEXT = ["the", "sun", "is", "warm", "moon", "and", "cold"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
# large weights, LayerNorms among them: what is not carried over shows
SIZES = SMALL | {"initializer_range": 0.3, "layer_norm_eps": 1e-3, "max_position_embeddings": 24}
DENSE = "encoder.layer.0.output.dense.weight"
TEXT = "the sun is warm and the moon is cold"


def shaken(model):
    """A model whose LayerNorms and biases have an effect, too."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.tie_weights()
    return model.eval()


@pytest.fixture
def sources(tokenizer_of, tmp_path):
    """`sources(kind)`: (folder, model, tokenizer) of a tiny monolingual checkpoint with all words of the text."""

    def make(kind):
        folder = tmp_path / kind
        torch.manual_seed(0)
        sizes = SMALL if kind in ARCHITECTURES else SIZES
        if kind == "roberta":
            tokenizer = tokenizer_of("byte_level", [f"Ġ{word}" for word in reversed(WORDS_OF_TEXT)])
            sizes = sizes | {"type_vocab_size": 1}
        else:
            tokenizer = tokenizer_of("wordpiece", [*WORDS_OF_TEXT, "##s", "day"])
        ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS}
        config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes, **ids)
        model = AutoModelForMaskedLM.from_config(config)
        shaken(model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder, model, tokenizer

    return make


@pytest.fixture
def new_tokenizer(tokenizer_of, tmp_path):
    """A tokenizer with the same words and others, saved."""
    tokenizer = tokenizer_of("unigram", ["▁neu", *(f"▁{word}" for word in sorted(WORDS_OF_TEXT)), "s"])
    tokenizer.save_pretrained(tmp_path / "new_tokenizer")
    return tokenizer


@pytest.fixture
def start(recipe_of, new_tokenizer, tmp_path):
    """`start(path, config, **fields)`: (model, matching) from a folder and the other fields of meta_pretrained."""

    def make(path, config=None, **fields):
        model = {"type": "metaxlm", "meta_pretrained": {"path": str(path), **fields}, "config": config or {}}
        texts = [{"language": name, "path": "unused"} for name in ("en", "de")]
        objectives = {"mlm": {"batch_size": 8, "max_length": 16}}
        recipe = recipe_of(objectives, model=model, tokenizer=str(tmp_path / "new_tokenizer"), monolingual=texts)
        begin = Start(recipe)
        tokenizer = tokenizer_of(recipe)
        matching = begin.match(tokenizer)
        model = begin.build_model(begin.build_config(tokenizer), matching)
        return model.eval(), matching

    return make


def ids_of(tokenizer, prefix):
    words = tokenizer.convert_tokens_to_ids([prefix + word for word in TEXT.split()])
    return torch.tensor([[tokenizer.cls_token_id, *words, tokenizer.sep_token_id]])


@pytest.mark.parametrize("kind, prefix", [("bert", ""), ("roberta", "Ġ"), *((kind, "") for kind in ARCHITECTURES)])
@torch.no_grad()
def test_carry_over_keeps_states_and_predictions_of_a_text(sources, start, new_tokenizer, kind, prefix):
    folder, old, old_tokenizer = sources(kind)
    model, matching = start(folder)
    expected = old(ids_of(old_tokenizer, prefix), output_hidden_states=True)
    output = model.roberta(ids_of(new_tokenizer, "▁"), output_hidden_states=True)
    for states, expected_states in zip(output.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(states, expected_states, atol=2e-5, rtol=1e-5)
    shared = [row for row, source in enumerate(matching.sources) if source is not None]
    assert len(shared) == len(WORDS_OF_TEXT) + 5 + (kind != "roberta")  # specials, and "##s"
    logits = model.lm_head(output.last_hidden_state)[..., shared]
    rows = [matching.sources[row] for row in shared]
    torch.testing.assert_close(logits, expected.logits[..., rows], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("initialize", ["body", "embeddings", "both", "none"])
def test_carry_over_copies_what_table_5_names(sources, start, initialize):
    folder, old, _ = sources("bert")
    model, matching = start(folder, initialize=initialize)
    random, _ = start(folder, initialize="none")
    initial = dict(random.named_parameters())
    carried = {name for name, value in model.named_parameters() if not torch.equal(value, initial[name])}
    body = {name for name in initial if name.startswith(BODY)}
    embeddings = {name for name in initial if name.startswith(EMBEDDINGS)} | {"lm_head.bias"}
    expected = {"none": set(), "body": body, "embeddings": embeddings, "both": body | embeddings | {*HEAD}}
    assert carried == expected[initialize]
    if matching:
        unmatched = [row for row, source in enumerate(matching.sources) if source is None]
        assert unmatched
        assert torch.equal(model.get_parameter(WORDS)[unmatched], initial[WORDS][unmatched])
        assert not model.get_parameter("lm_head.bias")[unmatched].any()
    is_copied = torch.equal(model.get_parameter(f"roberta.{DENSE}"), old.bert.get_parameter(DENSE))
    assert is_copied == (initialize in ("body", "both"))


@pytest.mark.parametrize("positions", [20, 40])
def test_carry_over_of_positions_up_to_the_shorter_table(sources, start, positions):
    folder, old, _ = sources("bert")
    model, _ = start(folder, {"max_position_embeddings": positions})
    random, _ = start(folder, {"max_position_embeddings": positions}, initialize="none")
    old_PH = old.bert.embeddings.position_embeddings.weight + old.bert.embeddings.token_type_embeddings.weight[0]
    new_PH = model.get_parameter(POSITIONS)[2:]
    random_PH = random.get_parameter(POSITIONS)[2:]
    count = min(24, positions - 2)
    torch.testing.assert_close(new_PH[:count], old_PH[:count])
    assert torch.equal(new_PH[count:], random_PH[count:])
    assert not model.get_parameter(TOKEN_TYPES).any()


@pytest.mark.slow
def test_run_keeps_its_frozen_body_and_resumes_without_its_start(train, teacher_dir, difference, cut_back, tmp_path):
    source = shutil.copytree(teacher_dir, tmp_path / "source")
    run = tmp_path / "run"
    arguments = ["model.type=metaxlm", "model.config={}", f"model.meta_pretrained.path={source}", "save_every_steps=1"]
    arguments += ["phases.0.objectives={mlm: {batch_size: 8, max_length: 32}}", "phases.0.freeze_body=true"]
    train(*arguments)
    before = BertForMaskedLM.from_pretrained(source).state_dict()
    after = weights_of(run)
    body = [name for name in after if name.startswith(BODY)]
    assert len(body) == 32
    for name in body:
        assert torch.equal(after[name], before[name.replace("roberta", "bert", 1)]), name
    assert not torch.equal(after["lm_head.dense.weight"], before["cls.predictions.transform.dense.weight"])
    assert len(adam_of(run, 3)["state"]) == len(after) - len(body)
    resumed = cut_back(run, 2, tmp_path / "resumed")
    shutil.rmtree(source)
    train(*arguments, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
