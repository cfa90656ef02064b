"""MetaXLM's start: copied weights compute the same as in the model of one language; frozen weights do not change."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from modeling.backbone import ARCHITECTURES
from pretraining.recipe import Phase
from pretraining.start.initialization import Start
from pretraining.start.meta_pretrained import BODY, EMBEDDINGS, HEAD, POSITIONS, SPECIAL_IDS, TOKEN_TYPES, WORDS
from pretraining.trainable import is_trainable

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
    """kind -> (folder, model, tokenizer) of a tiny monolingual checkpoint with all words of the text."""

    def make(kind):
        folder = tmp_path / kind
        torch.manual_seed(0)
        if kind.startswith("bert"):
            tokenizer = tokenizer_of("wordpiece", [*WORDS_OF_TEXT, "##s", "day"])
            config = BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **SIZES)
            model = BertForMaskedLM(config) if kind == "bert" else BertModel(config)
        elif kind in ARCHITECTURES:
            tokenizer = tokenizer_of("wordpiece", [*WORDS_OF_TEXT, "##s", "day"])
            ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS}
            config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **SMALL, **ids)
            model = AutoModelForMaskedLM.from_config(config)
        else:
            tokens = [f"Ġ{word}" for word in reversed(WORDS_OF_TEXT)]
            tokenizer = tokenizer_of("byte_level", tokens)
            sizes = SIZES | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
            model = RobertaForMaskedLM(RobertaConfig(vocab_size=len(tokenizer), **sizes))
        model = shaken(model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder, model, tokenizer

    return make


@pytest.fixture
def new_tokenizer(tokenizer_of):
    return tokenizer_of("unigram", ["▁neu", *(f"▁{word}" for word in sorted(WORDS_OF_TEXT)), "s"])


@pytest.fixture
def start(recipe_of, new_tokenizer, tmp_path):
    """(recipe, model, matching) from a meta-pretrained folder; fields are those of model.meta_pretrained."""
    folder = tmp_path / "new_tokenizer"
    new_tokenizer.save_pretrained(folder)

    def make(path, config=None, seed=1, type="metaxlm", vocabulary=None, **fields):
        meta_pretrained = {"path": str(path), **fields}
        model = {"type": type, "meta_pretrained": meta_pretrained, "config": config or {}}
        objectives = {"mlm": {"batch_size": 8, "max_length": 16}}
        monolingual = [{"language": name, "path": "unused"} for name in ("en", "de")]
        recipe = recipe_of(
            objectives, model=model, tokenizer=str(vocabulary or folder), monolingual=monolingual, seed=seed
        )
        begin = Start.of(recipe)
        loaded = begin.load_tokenizer()
        config, matching = begin.build_config(loaded), begin.match(loaded)
        return begin.build_model(config, matching).eval(), matching

    return make


def ids_of(tokenizer, prefix):
    words = tokenizer.convert_tokens_to_ids([prefix + word for word in TEXT.split()])
    assert tokenizer.unk_token_id not in words
    return torch.tensor([[tokenizer.cls_token_id, *words, tokenizer.sep_token_id]])


@pytest.mark.parametrize("kind, prefix", [("bert", ""), ("roberta", "Ġ")])
def test_the_same_text_gives_the_same_states_and_predictions(sources, start, new_tokenizer, kind, prefix):
    folder, old, old_tokenizer = sources(kind)
    model, matching = start(folder)
    assert (model.config.layer_norm_eps, model.config.hidden_act) == (1e-3, "gelu")
    old_ids, new_ids = ids_of(old_tokenizer, prefix), ids_of(new_tokenizer, "▁")
    with torch.no_grad():
        wanted = old(old_ids, output_hidden_states=True)
        found = model.roberta(new_ids, output_hidden_states=True)
        logits = model.lm_head(found.last_hidden_state)
    for theirs, ours in zip(wanted.hidden_states, found.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
    shared = [row for row, source in enumerate(matching.sources) if source]
    assert len(shared) == len(WORDS_OF_TEXT) + 5 + (kind == "bert")  # specials, and "##s"
    rows = [matching.sources[row][0] for row in shared]
    torch.testing.assert_close(logits[..., shared], wanted.logits[..., rows], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_so_it_is_with_other_architectures(sources, start, new_tokenizer, kind):
    folder, old, old_tokenizer = sources(kind)
    model, matching = start(folder)
    old_ids, new_ids = ids_of(old_tokenizer, ""), ids_of(new_tokenizer, "▁")
    with torch.no_grad():
        wanted = old(old_ids, output_hidden_states=True)
        found = model.roberta(new_ids, output_hidden_states=True)
        logits = model.lm_head(found.last_hidden_state)
    for theirs, ours in zip(wanted.hidden_states, found.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
    shared = [row for row, source in enumerate(matching.sources) if source]
    rows = [matching.sources[row][0] for row in shared]
    torch.testing.assert_close(logits[..., shared], wanted.logits[..., rows], atol=2e-4, rtol=1e-4)
    before, body = old.base_model.state_dict(), start(folder, initialize="body")[0].roberta.backbone.state_dict()
    same = {name for name in body if body[name].shape == before[name].shape and torch.equal(body[name], before[name])}
    assert {name.startswith("embed") for name in same} <= {False} and len(same) > 10


def test_identical_vocabularies_give_the_identical_model(sources, start, tmp_path):
    """From a model of this zoo, saved as pre-training saves it."""
    folder, _, tokenizer = sources("roberta")
    old = shaken(start(folder, vocabulary=folder)[0])
    folder = tmp_path / "zoo"
    old.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model, matching = start(folder, vocabulary=folder)
    assert matching.sources == [(number,) for number in range(len(tokenizer))]
    before, after = old.state_dict(), model.state_dict()
    assert before.keys() - {"lm_head.decoder.bias"} == after.keys() - {"lm_head.decoder.bias"}
    assert not [name for name in after if not torch.equal(before[name], after[name])]


@pytest.mark.parametrize("initialize", ["body", "embeddings", "both", "none"])
def test_what_is_carried_over_is_what_table_5_names(sources, start, initialize):
    folder, old, _ = sources("bert")
    model, matching = start(folder, initialize=initialize)
    random, _ = start(folder, initialize="none")
    assert initialize != "none" or all(map(torch.equal, model.parameters(), random.parameters()))
    carried = {
        name
        for (name, value), other in zip(model.named_parameters(), random.parameters(), strict=True)
        if not torch.equal(value, other)
    }
    body = {name for name, _ in model.named_parameters() if name.startswith(BODY)}
    embeddings = {name for name, _ in model.named_parameters() if name.startswith(EMBEDDINGS)} | {"lm_head.bias"}
    wanted = {"none": set(), "body": body, "embeddings": embeddings, "both": body | embeddings | {*HEAD}}
    assert carried == wanted[initialize]
    if initialize in ("embeddings", "both"):
        unmatched = [row for row, source in enumerate(matching.sources) if not source]
        assert unmatched and torch.equal(model.get_parameter(WORDS)[unmatched], random.get_parameter(WORDS)[unmatched])
        assert not model.get_parameter("lm_head.bias")[unmatched].any()
    mine = model.get_parameter(f"{BODY}layer.1.output.dense.weight")
    theirs = old.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(mine, theirs) == (initialize in ("body", "both"))


@pytest.mark.parametrize("positions", [20, 40])
def test_positions_go_up_to_the_shorter_table(sources, start, positions):
    folder, old, _ = sources("bert")
    model, _ = start(folder, {"max_position_embeddings": positions})
    random, _ = start(folder, {"max_position_embeddings": positions}, initialize="none")
    old_PH = old.bert.embeddings.position_embeddings.weight + old.bert.embeddings.token_type_embeddings.weight[0]
    count = min(24, positions - 2)
    new_PH = model.get_parameter(POSITIONS)
    torch.testing.assert_close(new_PH[2 : 2 + count], old_PH[:count])
    assert torch.equal(new_PH[2 + count :], random.get_parameter(POSITIONS)[2 + count :])
    assert not model.get_parameter(TOKEN_TYPES).any()


def test_vecos_cross_attention_starts_random_and_the_seed_decides_how(sources, start):
    folder, *_ = sources("roberta")
    models = [start(folder, type="veco", seed=seed)[0] for seed in (1, 1, 2)]
    name = next(name for name, _ in models[0].named_parameters() if ".crossattention." in name and "weight" in name)
    first, again, other = (model.get_parameter(name) for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)
    same = f"{BODY}layer.0.output.dense.weight"
    assert torch.equal(models[0].get_parameter(same), models[2].get_parameter(same))


@pytest.mark.slow
def test_a_run_keeps_its_frozen_body_and_goes_on_without_its_start(train, teacher_dir, difference, cut_back, tmp_path):
    source = shutil.copytree(teacher_dir, tmp_path / "source")
    arguments = [
        "model.type=metaxlm",
        "model.config={}",
        f"model.meta_pretrained.path={source}",
        "phases.0.objectives={mlm: {batch_size: 8, max_length: 32}}",
        "phases.0.freeze_body=true",
        "save_every_steps=1",
    ]
    train(*arguments)
    run = tmp_path / "run"
    before = BertForMaskedLM.from_pretrained(source).state_dict()
    after = load_file(run / "model" / "model.safetensors")
    body = [name for name in after if name.startswith(BODY)]
    assert len(body) == 32
    assert all(torch.equal(after[name], before[name.replace("roberta", "bert", 1)]) for name in body)
    head = after["lm_head.dense.weight"]
    assert not torch.equal(head, before["cls.predictions.transform.dense.weight"]), "nothing was trained"
    state = torch.load(run / "checkpoints" / "step-3" / "optimizer.bin", weights_only=True)
    trained = [name for name in after if not name.startswith(BODY)]
    assert len(state["state"]) == len(trained) == sum(len(group["params"]) for group in state["param_groups"])

    resumed = cut_back(run, 2, tmp_path / "resumed")
    shutil.rmtree(source)
    train(*arguments, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
    facts = [json.loads((path / "run.json").read_text(encoding="utf-8")) for path in (run, resumed)]
    assert facts[0]["meta_pretrained"] == facts[1]["meta_pretrained"] and facts[0]["meta_pretrained"]["fingerprint"]


def test_what_no_monolingual_model_has_is_not_frozen():
    phase = Phase(name="a", steps=1, learning_rate=1.0, freeze_body=True)
    assert is_trainable(f"{BODY}layer.0.crossattention.self.query.weight", phase)


@pytest.mark.parametrize("kind", ["without a head", "with a matrix of its own"])
def test_a_head_that_does_not_fit_stays_behind(sources, start, kind):
    folder, old, _ = sources("bert without head" if kind == "without a head" else "roberta")
    if kind == "with a matrix of its own":
        old = RobertaForMaskedLM(RobertaConfig(**(old.config.to_dict() | {"tie_word_embeddings": False})))
        old.save_pretrained(folder)
    model, _ = start(folder)
    random, _ = start(folder, initialize="none")
    name = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(model.roberta.get_parameter(name), old.base_model.get_parameter(name))
    for name in (*HEAD, "lm_head.bias"):
        assert torch.equal(model.get_parameter(name), random.get_parameter(name))


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda weights: weights.pop("bert.embeddings.word_embeddings.weight"), "lacks"),
        (lambda weights: weights.update({f"bert.{DENSE}": torch.zeros(3, 3)}), DENSE),
        (None, "model.meta_pretrained.path"),
    ],
)
def test_weights_that_are_no_start(sources, start, change, named):
    folder, *_ = sources("bert")
    file = folder / "model.safetensors"
    if change is None:
        file.write_bytes(b"nothing")
    else:
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=named):
        start(folder)


@pytest.mark.parametrize(
    "config, fields, named",
    [
        ({"hidden_size": 64}, {}, "hidden_size is 64"),
        ({"num_hidden_layers": 3}, {"initialize": "body"}, "num_hidden_layers is 3"),
        ({"layer_norm_eps": 1e-5}, {"initialize": "embeddings"}, "layer_norm_eps is 1e-05"),
        ({}, {"tokenizer": "NEW"}, "padding id is 1"),
        ({}, {"tokenizer": "nowhere/at_all/x"}, "meta_pretrained.tokenizer"),
        ({}, {"rows": "random", "dictionaries": [{"language": "de", "path": "x"}]}, "rows"),
        ({}, {"dictionaries": [{"language": "dee", "path": "x"}]}, "'de'"),
    ],
)
def test_starts_that_cannot_be(sources, start, tmp_path, config, fields, named):
    folder, *_ = sources("bert")
    if fields.get("tokenizer") == "NEW":
        fields = {"tokenizer": str(tmp_path / "new_tokenizer")}
    with pytest.raises(ValueError, match=named):
        start(folder, config, **fields)


def test_checkpoints_that_are_no_start(start, sources, tmp_path):
    config = DistilBertConfig(vocab_size=20, dim=32, n_layers=1, n_heads=2, hidden_dim=16)
    DistilBertModel(config).save_pretrained(tmp_path / "distil")
    (tmp_path / "empty").mkdir()
    folder, *_ = sources("bert")
    config = json.loads((folder / "config.json").read_text()) | {"is_decoder": True}
    (folder / "config.json").write_text(json.dumps(config))
    for path, named in (
        ("runs/nowhere/model", "model.meta_pretrained.path"),
        (tmp_path / "distil", "'distilbert'"),
        (tmp_path / "empty", "empty"),
        (folder, "decoder"),
    ):
        with pytest.raises(ValueError, match=named):
            start(path)
