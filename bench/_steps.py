"""Whole training steps to measure: made-up text of real lengths, this package's step, and the peer's.

Text is random tokens in rows of real lengths, because the time of a step does not depend on the tokens. Our step is the
one of pretraining/training.py. The peer is transformers' model and collator in a plain accelerate loop.

Legend: `M` texts or pairs.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    XLMRobertaTokenizer,
)

from bench._common import HEAD_SIZE, device_name
from modeling.backbone import renamed
from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.encoder import MultiHeadAttention
from modeling.modeling_metaxlm import MetaXlmForPreTraining
from pretraining.data.batches import Feed
from pretraining.data.examples import Example, Texts
from pretraining.objectives import OBJECTIVES
from pretraining.recipe import ModelStart, Phase, Recipe
from pretraining.training import Training, make_accelerator

PREDICTED = 0.15  # both sides' default
DROPOUT = 0.1  # XLM-R's, of states and of attention
ORDINARY = 4  # first id that is no special token of XLM-R; the last id is <mask>

# Configuration fields of the measured encoders, except for size and special ids. Each has its own dropout. Feed-forward
# layers with a gate have the width that gives them as many weights as XLM-R's.
GATED = 8 / 3
ENCODERS: dict[str, dict[str, Any]] = {
    "xlm-roberta": {},
    "modernbert": {"intermediate_size": GATED},
    "eurobert": {"intermediate_size": GATED},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 256,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
}


class Size(NamedTuple):
    """Layers `L`, hidden size `d` and vocabulary `V` of a model, and the useful FLOPs of its step.

    A matrix of m weights costs 6 m a position, forward and backward; attention to s positions 12 d s a layer. A layer
    has 12 d^2 weights. Padding and logits that nobody reads are no useful FLOPs.
    """

    layers: int
    hidden: int
    vocab: int

    def mlm(self, lengths: np.ndarray, predicted: float) -> float:
        """MLM, TLM, CAMLM on rows of n positions: 72 L d^2 sum n + 12 L d sum n^2 + predicted (6 d V + 6 d^2)."""
        n = np.asarray(lengths, dtype=np.float64)
        body = 72 * self.layers * self.hidden**2 * n.sum() + 12 * self.layers * self.hidden * (n**2).sum()
        return float(body) + predicted * 6 * (self.hidden * self.vocab + self.hidden**2)

    def config(self, longest: int, **fields: Any) -> dict[str, Any]:
        """Fields that XLM-R's configuration and ours have in common; `fields` add to them."""
        return dict(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // HEAD_SIZE,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=longest + 2,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            **fields,
        )


def read_lengths() -> tuple[np.ndarray, np.ndarray]:
    """(M, 2) lengths of both sides of every pair, (K,) of every text, in tokens without special tokens.

    bench/lengths.json has counts and no text. They are those of NTREX, news in six languages, under a unigram tokenizer
    of 64,000 tokens, which cuts these texts about as finely as XLM-R's.
    """
    counts = json.loads(Path(__file__).with_name("lengths.json").read_text(encoding="utf-8"))
    pairs = [
        (int(source), int(target), count)
        for source, targets in counts["pairs"].items()
        for target, count in targets.items()
    ]
    pairs_M3 = np.array(pairs)
    texts = np.array([(int(length), count) for length, count in counts["texts"].items()])
    return np.repeat(pairs_M3[:, :2], pairs_M3[:, 2], axis=0), np.repeat(texts[:, 0], texts[:, 1])


def made_up_tokenizer(vocab: int) -> XLMRobertaTokenizer:
    """A tokenizer with XLM-R's special ids and `vocab` tokens, to pad and to mask with."""
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    tokens = [(f"▁{number}", -10.0) for number in range(vocab - len(special) - 1)]
    return XLMRobertaTokenizer(vocab=[*special, *tokens, ("<mask>", 0.0)])


def made_up_examples(lengths: np.ndarray, vocab: int, rng: np.random.Generator, first: int = 0) -> list[Example]:
    """Random tokens in texts (M,) or pairs (M, 2) of these lengths, which leave special tokens out."""
    sides = [
        [rng.integers(ORDINARY, vocab - 1, size=length).astype(np.int32) for length in np.atleast_1d(row)]
        for row in lengths
    ]
    return [Example(tokens, "made up", first + number) for number, tokens in enumerate(sides)]


def our_batch(
    tokenizer: Any, examples: list[Example], objective: str = "tlm", predicted: float = PREDICTED
) -> dict[str, dict]:
    """The batch that the training loop would get of these examples."""
    collator = OBJECTIVES[objective](tokenizer, mask_probability=predicted)
    return {objective: collator.sub_batch(Texts.of(examples), ("bench",))}


def masked_lm(encoder: str, size: Size, longest: int, of_attention: float = DROPOUT) -> PreTrainedModel:
    """The peer's model, with random weights: transformers' own, of one of `ENCODERS`."""
    torch.manual_seed(0)
    fields = size.config(longest) | ENCODERS[encoder]
    if fields["intermediate_size"] == GATED:
        fields["intermediate_size"] = round(GATED * size.hidden)
    if encoder == "xlm-roberta":
        fields |= dropout(of_attention)
    special = dict(bos_token_id=0, cls_token_id=0, pad_token_id=1, eos_token_id=2, sep_token_id=2)
    config = AutoConfig.for_model(encoder, **fields, **special, mask_token_id=size.vocab - 1, tie_word_embeddings=True)
    return AutoModelForMaskedLM.from_config(config).to(device_name()).train()


def ours_of(peer: PreTrainedModel) -> MetaXlmForPreTraining:
    """Ours with the peer's own parameters, shared."""
    is_xlm_r = peer.config.model_type == "xlm-roberta"
    config = MetaXlmConfig(**peer.config.to_dict()) if is_xlm_r else MetaXlmConfig(backbone_config=peer.config)
    ours = MetaXlmForPreTraining(config).to(peer.device).train()
    for name, parameter in peer.named_parameters(remove_duplicate=False):  # tied ones under both names
        module, _, last = (name if is_xlm_r else renamed(peer, name)).rpartition(".")
        setattr(ours.get_submodule(module), last, parameter)
    assert set(map(id, ours.parameters())) == set(map(id, peer.parameters())), "not all was loaded"
    return ours


def sample_texts() -> list[str]:
    """The texts of the sample corpus, of languages with spaces between words."""
    corpus = Path(__file__).parents[1] / "sample_corpus"
    files = [(corpus / code / "train.jsonl").read_text(encoding="utf-8") for code in ("en", "de", "fr", "es")]
    return [json.loads(line)["text"] for file in files for line in file.splitlines()]


def missing_gradients(model: Any) -> int:
    """Bytes of the gradients that are not there between two steps."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad and p.grad is None)


def dropout(of_attention: float) -> dict[str, float]:
    """Configuration fields: XLM-R's dropout of states, and so much of attention weights."""
    return {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": of_attention}


def set_attention_dropout(model: Any, probability: float) -> None:
    """Of our models, in place."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.dropout = probability


class OurStep:
    """A step of this package, by the methods of its training loop."""

    def __init__(self, model: Any, tokenizer: Any, precision: str = "fp32", objective: str = "tlm"):
        self.phase = Phase("bench", 1_000_000, {objective: OBJECTIVES[objective](batch_size=1)}, learning_rate=1e-5)
        start = ModelStart(type=model.config.model_type)
        recipe = Recipe("unused", start, phases=[self.phase], precision=precision)
        model.set_skip_padding(True)
        self.objective, self.tokenizer = objective, tokenizer
        self.training = Training(recipe, model, Feed.of(recipe, [], tokenizer), make_accelerator(precision), [])
        self.training._start_phase(0)
        self.optimizer = self.training.optimizer.optimizer
        self.model = self.training.model

    def __call__(self, examples: list[Example]) -> float:
        """One step; the mean loss."""
        return self.on_batch(our_batch(self.tokenizer, examples, self.objective))

    def on_batch(self, batch: dict[str, dict]) -> float:
        """One step on a collated batch; the mean loss."""
        training, labels = self.training, self.phase.predictions(batch, {self.objective: 1.0})
        batch = send_to_device(batch, training.accelerator.device)
        output = training._backward(batch, {}, labels, is_last=True)
        training._step(labels, torch.stack([output.loss_sum.detach(), output.loss_sum.new_zeros(())]).double())
        return output.loss.item()


class PeerStep:
    """The loop that accelerate's documentation shows, around transformers' own model and collator.

    With `packs`, it is the loop of a good engineer, of XLM-R: packed rows, the head on masked positions, fused AdamW.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, precision: str = "fp32", packs: bool = False):
        self.accelerator = Accelerator(mixed_precision={"fp32": "no"}.get(precision, precision))
        self.tokenizer, self.packs = tokenizer, packs
        self.collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=PREDICTED)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=packs or None)
        self.model, self.prepared = self.accelerator.prepare(model, self.optimizer)
        self.model.train()

    def __call__(self, examples: list[Example]) -> float:
        """One step on one batch of rows; the mean loss."""
        rows = features(examples, self.tokenizer)
        for batch in DataLoader(rows, batch_size=len(rows), collate_fn=self.collate):
            loss = self.loss(send_to_device(batch, self.accelerator.device))
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.prepared.step()
            self.prepared.zero_grad()
        return loss.item()

    def loss(self, batch: Any) -> torch.Tensor:
        """The mean loss of a masked batch."""
        if not self.packs:
            return self.model(**batch).loss
        inputs, labels = packed(batch, self.tokenizer.pad_token_id)
        with self.accelerator.autocast():
            states = self.model.base_model(**inputs).last_hidden_state
            is_predicted = labels != -100
            logits = self.model.lm_head(states[is_predicted])
        return torch.nn.functional.cross_entropy(logits.float(), labels[is_predicted])


def packed(batch: Any, padding: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Rows packed by first fit into rows of the longest one's length: inputs under a block mask, and labels."""
    lengths, rows = batch["attention_mask"].sum(1).tolist(), []
    room = max(lengths)
    for number, length in enumerate(lengths):
        fitting = next((row for row in rows if sum(lengths[other] for other in row) + length <= room), None)
        rows.append([number]) if fitting is None else fitting.append(number)
    ids = torch.full((len(rows), room), padding)
    labels, owners, positions = torch.full_like(ids, -100), torch.full_like(ids, -1), torch.full_like(ids, padding)
    for row, numbers in enumerate(rows):
        start = 0
        for number in numbers:
            place, length = slice(start, start + lengths[number]), lengths[number]
            ids[row, place], labels[row, place] = batch["input_ids"][number, :length], batch["labels"][number, :length]
            owners[row, place], positions[row, place] = number, torch.arange(length) + padding + 1
            start += length
    mask = (owners[:, :, None] == owners[:, None])[:, None]  # padding sees padding: a row without any column is NaN
    fields = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    return send_to_device(fields, batch["labels"].device), labels.to(batch["labels"].device)


def features(examples: list[Example], tokenizer: Any) -> list[dict[str, list[int]]]:
    """What `datasets` would give transformers' collator of its tokenizer's rows."""
    rows = []
    for example in examples:
        row, special = [tokenizer.cls_token_id], [1]
        for number, tokens in enumerate(example.sides):
            between = [tokenizer.sep_token_id] * (number > 0)  # `<s> x </s></s> y </s>`
            row += [*between, *tokens.tolist(), tokenizer.sep_token_id]
            special += [*(1 for _ in between), *(0 for _ in tokens), 1]
        rows.append({"input_ids": row, "special_tokens_mask": special})
    return rows


@dataclass
class Contest:
    """Both models with the same weights, in the same memory, and both loops."""

    ours: OurStep
    peer: PeerStep
    packed: PeerStep

    @classmethod
    def of(cls, encoder: str, size: Size, longest: int, precision: str, objective: str) -> "Contest":
        """On the CPU, weights and Adam's moments are shared: what waits for its turn takes no memory of its own."""
        tokenizer, peer = made_up_tokenizer(size.vocab), masked_lm(encoder, size, longest)
        peers = [PeerStep(peer, tokenizer, precision, packs) for packs in (False, True)]
        return cls(OurStep(ours_of(peer), tokenizer, precision, objective), *peers)

    def share_moments(self) -> None:
        """After the peer's first step: the others continue with its moments."""
        # on a GPU fused AdamW counts its steps elsewhere than the peer's
        if not next(self.ours.model.parameters()).is_cuda:
            self.ours.optimizer.state = self.packed.optimizer.state = self.peer.optimizer.state

    @torch.no_grad()
    def losses(self, examples: list[Example]) -> dict[str, float]:
        """Of both on one masked batch, without dropout."""
        models = self.peer.model, self.ours.model
        batch = self.peer.collate(features(examples, self.peer.tokenizer))
        batch = {name: values.to(next(self.peer.model.parameters()).device) for name, values in batch.items()}
        try:
            for model in models:
                model.eval()
            losses = {"ours": self.ours.model(**{self.ours.objective: batch}).loss.item()}
            losses["transformers"] = self.peer.loss(batch).item()
            if self.peer.model.config.model_type == "xlm-roberta":
                losses["transformers, packed"] = self.packed.loss(batch).item()
        finally:
            for model in models:
                model.train()
        return losses
