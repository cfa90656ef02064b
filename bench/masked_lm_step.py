"""The whole training step against transformers and accelerate: `python -m bench.masked_lm_step`.

Ours is this package's update (`MetaXlmForPreTraining`, padding skipped, head on the predicted positions, fused AdamW).
The peer is transformers' masked LM of the same encoder (`--encoder`) with `DataCollatorForLanguageModeling` in a plain
accelerate loop with `torch.optim.AdamW`, all unmodified. Of XLM-R, a second peer is the same model in a loop written
with care: rows packed by first fit under a block mask, the head on the masked positions only, fused AdamW. All collate,
compute forward and backward, clip and update, on the same batches, which are new in each round, with sdpa attention
and its dropout if the encoder supports it.

Parts: TLM on news pairs in random batches, fp32 and bf16; TLM on batches grouped by length, as the Trainer groups them;
MLM on rows full of text. Times are per real token, without padding. Memory is the peak of one update, as torch's
allocator counts it, without weights, gradients and Adam's moments. If the peer's logits do not fit into this machine's
memory, lower `--pairs`. With `--mfu`, the table has model FLOP utilization, too: useful FLOPs (`Size.mlm`) a second,
over those of a product of two large matrices in the same precision.

On a GPU, `--gpu` measures in bf16 what people pre-train: 16 to 256 random pairs and 16 rows full of 512 tokens, with
`--mfu 8192`. Two more ways have compiled layers: packed, and ours as with `model.compile`. A way that does not fit into
the GPU's memory is left out. On a CPU, try the command with `--layers 1 --hidden 64 --vocab 300 --pairs 2 --mfu 64`.

Text is random tokens in rows of real lengths, because the time of a step does not depend on the tokens. Our step is the
one of pretraining/training.py. Legend: `M` texts or pairs.
"""

import argparse
import copy
import gc
import json
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    XLMRobertaTokenizer,
)

from bench._common import (
    DEVICE,
    interleaved,
    make_parser,
    matrix_peak,
    median_ratio,
    peak_bytes,
    seconds_of,
    show,
    write_results,
)
from crosslingual_zoo.modeling.backbone import renamed
from crosslingual_zoo.modeling.configuration_metaxlm import MetaXlmConfig
from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForPreTraining
from crosslingual_zoo.pretraining.data.examples import Texts
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe import ModelStart, Recipe
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.pretraining.start.initialization import compile_layers
from crosslingual_zoo.pretraining.training import Training, make_accelerator
from crosslingual_zoo.zoo_core.command_line import user_errors

MEGABATCH = 50  # batches that the Trainer's group_by_length sorts at a time
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}  # between the losses of all ways
PEER, PACKED, OURS = "transformers", "transformers, packed", "ours"
COMPILED = {PACKED: "transformers, packed, compiled", OURS: "ours, compiled"}
PREDICTED = 0.15  # both sides' default
LONGEST = 512  # positions of a packed row, and of the model
ORDINARY = 4  # first id that is no special token of XLM-R; the last id is <mask>

GATED = "modernbert", "eurobert"  # feed-forward layers have a gate
ENCODERS = "xlm-roberta", *GATED, "deberta-v2"  # each has its own dropout
DEBERTA = dict(
    relative_attention=True, position_buckets=256, share_att_key=True, pos_att_type=["p2c", "c2p"],
    norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
)  # fmt: skip


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

    def config(self) -> dict[str, Any]:
        """Fields that XLM-R's configuration and ours have in common."""
        return dict(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,  # as in the papers' models
            intermediate_size=4 * self.hidden,
            max_position_embeddings=LONGEST + 2,
            type_vocab_size=1,
        )


class Part(NamedTuple):
    """What is measured: rows by `batching`, of pairs (TLM) or of texts (MLM)."""

    batching: str
    precision: str
    pairs: int

    @property
    def objective(self) -> str:
        return "mlm" if self.batching == "packed" else "tlm"


PARTS = {
    "random-fp32": Part("random", "fp32", 16),
    "random-bf16": Part("random", "bf16", 32),
    "grouped-fp32": Part("grouped", "fp32", 16),
    "packed-fp32": Part("packed", "fp32", 4),
}
GPU_PARTS = {f"random-{pairs}": Part("random", "bf16", pairs) for pairs in (16, 64, 128, 256)}
GPU_PARTS["packed-16"] = Part("packed", "bf16", 16)
GPU_MATRIX = 8192  # rows of the matrices whose product shows the peak


def read_lengths() -> np.ndarray:
    """(M, 2) lengths of both sides of every pair, in tokens without special tokens.

    bench/lengths.json has counts and no text. They are those of NTREX, news in six languages, under a unigram tokenizer
    of 64,000 tokens, which cuts these texts about as finely as XLM-R's.
    """
    counts = json.loads(Path(__file__).with_name("lengths.json").read_text(encoding="utf-8"))["pairs"]
    lengths = []
    repetitions = []
    for source_length, targets in counts.items():
        for target_length, count in targets.items():
            lengths.append((int(source_length), int(target_length)))
            repetitions.append(count)
    return np.repeat(np.array(lengths), repetitions, axis=0)


def made_up_tokenizer(vocab: int) -> XLMRobertaTokenizer:
    """A tokenizer with XLM-R's special ids and `vocab` tokens, to pad and to mask with."""
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    tokens = [(f"▁{number}", -10.0) for number in range(vocab - len(special) - 1)]
    return XLMRobertaTokenizer(vocab=[*special, *tokens, ("<mask>", 0.0)])


def made_up_examples(lengths: np.ndarray, vocab: int, rng: np.random.Generator) -> Texts:
    """Random tokens in texts (M, 1) or pairs (M, 2) of these lengths, which leave special tokens out."""
    sides: list[list[np.ndarray]] = [[] for _ in range(lengths.shape[1])]
    for row in lengths:
        for side, length in zip(sides, row, strict=True):
            side.append(rng.integers(ORDINARY, vocab - 1, size=length).astype(np.int32))
    count = len(lengths)
    return Texts(sides, ["made up"] * count, np.arange(count), np.zeros(count, dtype=np.int64))


def masked_lm(encoder: str, size: Size) -> PreTrainedModel:
    """The peer's model, with random weights: transformers' own, of one of `ENCODERS`."""
    torch.manual_seed(0)
    fields = size.config() | (DEBERTA if encoder == "deberta-v2" else {})
    if encoder in GATED:  # as many weights as in XLM-R's layers
        fields["intermediate_size"] = round(8 / 3 * size.hidden)
    special = dict(bos_token_id=0, cls_token_id=0, pad_token_id=1, eos_token_id=2, sep_token_id=2)
    config = AutoConfig.for_model(encoder, **fields, **special, mask_token_id=size.vocab - 1, tie_word_embeddings=True)
    return AutoModelForMaskedLM.from_config(config).to(DEVICE).train()


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


class OurStep:
    """A step of this package, by the methods of its training loop."""

    def __init__(self, peer: PreTrainedModel, tokenizer: Any, part: Part, compiles: bool = False):
        model = ours_of(peer)
        self.objective = part.objective
        self.collator = OBJECTIVES[part.objective](tokenizer, batch_size=1, mask_probability=PREDICTED)
        self.phase = Phase("bench", 1_000_000, {part.objective: self.collator}, learning_rate=1e-5)
        recipe = Recipe("unused", ModelStart(type="metaxlm"), phases=[self.phase], precision=part.precision)
        model.set_skip_padding(True)
        if compiles:
            compile_layers(model)
        self.training = Training(recipe, model, [], tokenizer, make_accelerator(part.precision))
        self.training._start_phase(0)
        self.optimizer = self.training.optimizer.optimizer
        self.model = self.training.model

    def __call__(self, examples: Texts) -> None:
        training = self.training
        batch = {self.objective: self.collator.sub_batch(examples, ("bench",))}
        labels = self.phase.predictions(batch, {self.objective: 1.0})
        batch_on_device = send_to_device(batch, training.accelerator.device)
        output = training._backward(batch_on_device, {}, labels, is_last=True)
        loss_sum = output.loss_sum.detach()
        more_predictions = torch.zeros_like(loss_sum)  # than labels
        training._step(labels, torch.stack([loss_sum, more_predictions]).double())

    def loss(self, batch: Any) -> torch.Tensor:
        """The mean loss of a masked batch."""
        return self.model(**{self.objective: batch}).loss


class PeerStep:
    """The loop that accelerate's documentation shows, around transformers' own model and collator.

    With `packs`, it is the loop of a good engineer, of XLM-R: packed rows, the head on masked positions, fused AdamW.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, precision: str, packs: bool = False):
        self.accelerator = Accelerator(mixed_precision={"fp32": "no"}.get(precision, precision))
        self.tokenizer = tokenizer
        self.packs = packs
        self.collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=PREDICTED)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=packs or None)
        self.model, self.prepared = self.accelerator.prepare(model, self.optimizer)

    def __call__(self, examples: Texts) -> None:
        rows = features(examples, self.tokenizer)
        for batch in DataLoader(rows, batch_size=len(rows), collate_fn=self.collate):
            self.accelerator.backward(self.loss(send_to_device(batch, self.accelerator.device)))
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.prepared.step()
            self.prepared.zero_grad()

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
    """Texts packed by first fit into rows of the longest one's length: inputs under a block mask, and labels."""
    lengths = batch["attention_mask"].sum(1).tolist()
    rows: list[list[int]] = []
    lengths_of_rows: list[int] = []
    for number, length in enumerate(lengths):
        for row, row_length in enumerate(lengths_of_rows):
            if row_length + length <= max(lengths):
                rows[row].append(number)
                lengths_of_rows[row] += length
                break
        else:
            rows.append([number])
            lengths_of_rows.append(length)

    def laid_out(values_BT: torch.Tensor, fill: int) -> torch.Tensor:
        joined = []
        for row in rows:
            texts = [values_BT[number, : lengths[number]] for number in row]
            joined.append(torch.cat(texts))
        return pad_sequence(joined, batch_first=True, padding_value=fill)

    ids_BT = batch["input_ids"]
    columns_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    texts_B = torch.arange(len(ids_BT), device=ids_BT.device)
    owners = laid_out(texts_B[:, None].expand_as(ids_BT), -1)
    mask = (owners[:, :, None] == owners[:, None])[:, None]  # padding sees padding: a row without any column is NaN
    positions = laid_out(columns_T.expand_as(ids_BT) + padding + 1, padding)
    inputs = {"input_ids": laid_out(ids_BT, padding), "position_ids": positions, "attention_mask": mask}
    return inputs, laid_out(batch["labels"], -100)


def features(examples: Texts, tokenizer: Any) -> list[dict[str, list[int]]]:
    """What transformers' collator would get of the tokenizer's rows: `<s> x </s>`, or `<s> x </s></s> y </s>`."""
    begin = tokenizer.cls_token_id
    end = tokenizer.sep_token_id
    rows = []
    for sides in zip(*examples.sides, strict=True):
        ids: list[int] = []
        is_special: list[int] = []
        for side in sides:
            ids += [end, *side.tolist(), end]
            is_special += [1, *[0] * len(side), 1]
        ids[0] = begin
        rows.append({"input_ids": ids, "special_tokens_mask": is_special})
    return rows


def steps_of(encoder: str, size: Size, part: Part, compiles: bool = False) -> dict[str, OurStep | PeerStep]:
    """The step of each way, on shared weights; the packed peer needs XLM-R's parts. `compiles`: also the compiled ones.

    The same function compiles the layers of both sides.
    """
    tokenizer = made_up_tokenizer(size.vocab)
    model = masked_lm(encoder, size)
    compiled_model = with_same_weights(model)
    steps: dict[str, OurStep | PeerStep] = {PEER: PeerStep(model, tokenizer, part.precision)}
    if encoder == "xlm-roberta":
        steps[PACKED] = PeerStep(model, tokenizer, part.precision, packs=True)
        if compiles:
            compile_layers(compiled_model)
            steps[COMPILED[PACKED]] = PeerStep(compiled_model, tokenizer, part.precision, packs=True)
    steps[OURS] = OurStep(model, tokenizer, part)
    if compiles:
        steps[COMPILED[OURS]] = OurStep(model, tokenizer, part, compiles=True)
    return steps


def with_same_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model that shares its parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


@torch.no_grad()
def losses_of(steps: dict[str, OurStep | PeerStep], examples: Texts) -> dict[str, float]:
    """Of all ways on one masked batch, without dropout."""
    peer = steps[PEER]
    batch = send_to_device(peer.collate(features(examples, peer.tokenizer)), DEVICE)
    losses = {}
    for name, step in steps.items():
        step.model.eval()
        losses[name] = step.loss(batch).item()
        step.model.train()
    return losses


def round_batches(part: Part, pairs_M2: np.ndarray, number: int, batches: int) -> list[np.ndarray]:
    """Lengths of the sentences in the batches of a round."""
    rng = np.random.default_rng([part.pairs, number + 1])
    if part.batching == "packed":
        return [np.full((part.pairs, 1), LONGEST - 2)] * batches
    if part.batching == "random":
        return [pairs_M2[rng.integers(len(pairs_M2), size=part.pairs)] for _ in range(batches)]
    pool_M2 = pairs_M2[rng.integers(len(pairs_M2), size=MEGABATCH * part.pairs)]
    by_length = np.split(pool_M2[pool_M2.sum(1).argsort()], MEGABATCH)
    # evenly spread from short to long
    chosen = ((np.arange(batches) + rng.random(batches)) * MEGABATCH / batches).astype(int)
    return [by_length[index] for index in chosen]


def row_lengths(batch: np.ndarray) -> np.ndarray:
    """Positions of the rows of a batch, special tokens included: two for each side."""
    return batch.sum(1) + 2 * batch.shape[1]


def memory_of(step: OurStep | PeerStep, batch: Texts) -> float:
    """MiB of a step at its peak, above weights, gradients and moments. The step has been made before."""
    step.model.zero_grad()
    gc.collect()  # what is freed during the step would lower its peak
    gradients = sum(weights.numel() * weights.element_size() for weights in step.model.parameters())
    return (peak_bytes(lambda: step(batch)) - gradients) / 2**20


def measure(size: Size, part: Part, flags: argparse.Namespace) -> dict[str, Any]:
    """One part: its rows of the table, and its tokens. Raises ValueError if the ways have different losses."""
    steps = steps_of(flags.encoder, size, part, flags.gpu)
    lengths = round_lengths(part, flags)
    rng = np.random.default_rng(0)
    data: dict[int, list[Texts]] = {}
    for number, batches in lengths.items():
        data[number] = [made_up_examples(batch, size.vocab, rng) for batch in batches]
    losses = losses_of(steps, data[-1][0][:4])
    if max(losses.values()) - min(losses.values()) > TOLERANCE[part.precision]:
        raise ValueError(f"The ways do not have the same loss: {losses}.")
    steps = {way: step for way, step in steps.items() if fits(step, data[-1][0])}

    def run(way: str, number: int) -> None:
        for batch in data[number]:
            steps[way](batch)
        steps[way].model.zero_grad()  # of shared weights

    timed = interleaved({way: lambda n, way=way: seconds_of(lambda: run(way, n)) for way in steps}, flags.rounds)
    memory = {way: memory_of(step, data[0][0]) for way, step in steps.items()}
    drawn = [np.concatenate(lengths[number]) for number in range(flags.rounds)]
    tokens = [int(row_lengths(batch).sum()) for batch in drawn]
    useful = [size.mlm(row_lengths(batch), PREDICTED * batch.sum()) for batch in drawn]
    peak = None
    if flags.mfu:
        peak = matrix_peak(flags.mfu, torch.bfloat16 if part.precision == "bf16" else torch.float32)
    rows = []
    for way, seconds in timed.items():
        milliseconds_a_token = [1000 * duration / count for duration, count in zip(seconds, tokens, strict=True)]
        row = {"way": way, "ms a step": 1000 * statistics.median(seconds) / flags.batches}
        row["ms a real token"] = statistics.median(milliseconds_a_token)
        row |= comparisons(way, timed)
        row["MiB above"] = memory[way]
        if PEER in memory and way != PEER:
            row["less by"] = memory[PEER] / memory[way]
        if peak is not None:
            speeds = [flops / duration for flops, duration in zip(useful, seconds, strict=True)]
            row["of the peak"] = statistics.median(speeds) / peak
        rows.append(row)
    return {**part._asdict(), "real_tokens_a_round": tokens, "ways": rows, "seconds": timed}


def round_lengths(part: Part, flags: argparse.Namespace) -> dict[int, list[np.ndarray]]:
    """The lengths of the texts in the batches of each round; round -1 is the warm-up."""
    pairs_M2 = read_lengths()
    lengths = {}
    for number in range(-1, flags.rounds):
        lengths[number] = round_batches(part, pairs_M2, number, flags.batches)
    return lengths


def fits(step: OurStep | PeerStep, batch: Texts) -> bool:
    """Whether the memory of the GPU is enough for a step."""
    try:
        step(batch)
    except torch.OutOfMemoryError:
        step.model.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        return False
    step.model.zero_grad()
    return True


def comparisons(way: str, timed: dict[str, list[float]]) -> dict[str, float | None]:
    """How many times as fast a way is as plain; and ours, compiled or not, as the packed peers."""
    others = {"faster by": PEER}
    if way in (OURS, COMPILED[OURS]):
        others |= {"than packed": PACKED, "than packed, compiled": COMPILED[PACKED]}
    ratios: dict[str, float | None] = {}
    for name, other in others.items():
        is_compared = other in timed and other != way
        ratios[name] = median_ratio(timed[other], timed[way]) if is_compared else None
    return ratios


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "masked_lm_step")
    parser.add_argument("--layers", type=int, default=12, help="layers (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=768, help="hidden size, a multiple of 64 (default %(default)s)")
    parser.add_argument("--vocab", type=int, default=250_002, help="tokens of the vocabulary (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--batches", type=int, default=2, help="batches of a round (default %(default)s)")
    parser.add_argument("--encoder", choices=ENCODERS, default="xlm-roberta", help="architecture (default %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--gpu", action="store_true", help="measure, in place of --parts, what is for a GPU")
    parser.add_argument("--pairs", type=int, help="pairs of a batch, or packed rows (default: that of each part)")
    parser.add_argument("--mfu", type=int, metavar="N", help="also show the share of the peak of N x N matrices")
    flags = parser.parse_args(argv)
    size = Size(flags.layers, flags.hidden, flags.vocab)
    parts = {name: PARTS[name] for name in flags.parts}
    if flags.gpu:
        parts = GPU_PARTS
        flags.mfu = flags.mfu or GPU_MATRIX
    if flags.pairs:
        parts = {name: part._replace(pairs=flags.pairs) for name, part in parts.items()}
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines; read when torch is imported
    spawn = multiprocessing.get_context("spawn")
    # on a CPU, a new process has memory that nothing has touched; on a GPU, one process compiles once for all parts
    tasks = None if flags.gpu else 1
    results = {}
    with user_errors(), ProcessPoolExecutor(1, spawn, max_tasks_per_child=tasks) as pool:
        for name, part in parts.items():
            results[name] = pool.submit(measure, size, part, flags).result()
            show(f"{name}: {part.objective.upper()}, {part.pairs} rows a batch", results[name]["ways"])
        write_results(flags, {"model": size._asdict(), "device": DEVICE, "parts": results})


if __name__ == "__main__":
    main()
