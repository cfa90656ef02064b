# SPDX-License-Identifier: Apache-2.0
"""Word embeddings of a foreign checkpoint: which token a row stands for, how long the rows are, which are missing.

Legend: `V` tokens of the tokenizer, `R` rows of the checkpoint, `P` positions, `H` hidden size.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .modeling_veco import VecoModel

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, in XLM-R and in fairseq
LISTED_NOWHERE = len(SPECIALS) + 1  # tokens that fairseq's dict.txt leaves out: these and <mask>

# Word rows over position rows, in median length, of models that add the two unscaled: 1.0 to 2.4 in this project's
# runs. Between a model that scales words by sqrt(H) and one that does not lie at least that factor.
WORDS_OVER_POSITIONS = 1.5
# How far from a whole power of sqrt(H) a ratio of lengths may lie, in the logarithm, to be taken for that power.
TOLERANCE = 0.4
SAME_ROWS = 0.5  # median cosine of rows that come from one another; of unrelated rows it is near 0


@dataclass
class Vocabulary:
    """A tokenizer, the ids (R,) of the tokens that a checkpoint's rows stand for, and rows (V, H) of a reference."""

    tokenizer: PreTrainedTokenizerBase
    ids: torch.Tensor
    reference_VH: torch.Tensor | None
    fill: bool

    @property
    def reference_RH(self) -> torch.Tensor | None:
        """The reference's rows of the checkpoint's tokens."""
        return None if self.reference_VH is None else self.reference_VH[self.ids]


def read_vocabulary(
    words_RH: torch.Tensor,
    tokenizer: str,
    reference: str | None = None,
    vocabulary_map: str | None = None,
    fill_vocabulary: bool = False,
) -> Vocabulary:
    """What the rows of a checkpoint stand for: all tokens, or those of a map; `<mask>`, the last, may be absent.

    The arguments are the options of the command line. Raises ValueError for files that do not fit the rows.
    """
    loaded = load_tokenizer(tokenizer)
    size = len(loaded)
    ids = read_vocabulary_map(vocabulary_map, size) if vocabulary_map else torch.arange(size - 1)
    if len(words_RH) not in (len(ids), len(ids) + 1):
        raise ValueError(
            f"the checkpoint has {len(words_RH):,} word embeddings for {len(ids):,} tokens beside <mask>: give its "
            "--tokenizer, and the --vocabulary_map it was pruned by."
        )
    if len(words_RH) > len(ids):
        ids = torch.cat([ids, torch.tensor([size - 1])])
    reference_VH = reference_words(reference, (size, words_RH.shape[1])) if reference else None
    if fill_vocabulary and len(ids) < size and reference_VH is None:
        raise ValueError("--fill_vocabulary needs a --reference to take the missing word embeddings from.")
    return Vocabulary(loaded, ids, reference_VH, fill_vocabulary)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """An XLM-R tokenizer, from a folder or the Hub.

    Raises ValueError where there is none, or one whose special tokens have other ids than XLM-R's.
    """
    try:
        # a tokenizer needs none of the folder's code; without this the user would be asked whether to run it
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"the tokenizer {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    expected = dict(zip((*SPECIALS, "<mask>"), (*range(len(SPECIALS)), len(tokenizer) - 1), strict=True))
    found = {token: tokenizer.get_vocab().get(token) for token in expected}
    if found != expected:
        raise ValueError(f"the tokenizer {name!r} has the special tokens {found}, an XLM-R tokenizer {expected}.")
    return tokenizer


def read_vocabulary_map(path: str | Path, vocabulary: int) -> torch.Tensor:
    """Ids (K,) of the tokens, without `<mask>`, that a map of a pruned vocabulary keeps.

    The map has one 0 or 1 a line, for all V ids, or for the V - 5 tokens of fairseq's dict.txt, which lists neither
    the four first special tokens nor `<mask>` (the `--resized-dict-map` of VECO's fairseq scripts).

    Raises ValueError for another line, another number of lines, and special tokens that are not kept.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the vocabulary map {str(path)!r} cannot be read: {error}.") from error
    if other := set(lines) - {"0", "1"}:
        raise ValueError(f"the vocabulary map {path} has a line {min(other)!r}, neither 0 nor 1.")
    kept = torch.tensor([line == "1" for line in lines], dtype=torch.bool)
    if len(kept) == vocabulary - LISTED_NOWHERE:
        kept = torch.cat([torch.ones(len(SPECIALS), dtype=torch.bool), kept])
    elif len(kept) != vocabulary:
        raise ValueError(
            f"the vocabulary map {path} has {len(kept):,} lines: neither {vocabulary:,}, as the tokenizer has "
            f"tokens, nor {vocabulary - LISTED_NOWHERE:,}, as fairseq's dict.txt."
        )
    if not kept[: len(SPECIALS)].all():
        raise ValueError(f"the vocabulary map {path} leaves out one of {', '.join(SPECIALS)}: set them to 1.")
    return kept[: vocabulary - 1].nonzero()[:, 0]


def reference_words(name: str, shape: tuple[int, int]) -> torch.Tensor:
    """Word embeddings (V, H) of an XLM-R or VECO folder. Raises ValueError for rows of another shape."""
    try:
        model, report = VecoModel.from_pretrained(name, cross_attention=False, output_loading_info=True)
        if report["missing_keys"]:
            raise ValueError(f"it lacks {', '.join(sorted(report['missing_keys'])[:3])}")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"the reference {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    rows = model.embeddings.word_embeddings.weight.detach()
    if tuple(rows.shape) != shape:
        raise ValueError(f"the reference {name!r} has word embeddings {tuple(rows.shape)}, the checkpoint {shape}.")
    return rows


def times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The product, rounded once to the tensor's own type: dividing by a factor and multiplying costs 1 ulp at most."""
    return (tensor.double() * factor).to(tensor.dtype)


def median_length(rows: torch.Tensor) -> float:
    """Median Euclidean length of the rows that are not zero (padding is)."""
    lengths = rows.float().norm(dim=1)
    return lengths[lengths > 0].median().item() if lengths.any() else 0.0


def scale_of_rows(words_RH: torch.Tensor, positions_PH: torch.Tensor, reference_RH: torch.Tensor | None):
    """Which power of sqrt(H) makes the words those of a model that adds words and positions unscaled, as XLM-R does.

    fairseq's translation models multiply the words by sqrt(H) when they look them up, so that theirs may be stored
    sqrt(H) times shorter. Compared are the rows of the same tokens in a reference where there is one, and the
    positions of the checkpoint where there is none.

    Returns (power, found): 1, 0 or -1, or None where it cannot be told; and in words what was found.
    """
    root = math.sqrt(words_RH.shape[1])
    words = median_length(words_RH)
    found = f"median length of the word rows {words:.3g}"
    if reference_RH is not None:
        compared, usual = median_length(reference_RH), 1.0
        cosine = torch.nn.functional.cosine_similarity(words_RH.float(), reference_RH.float()).median().item()
        found += f", of the reference's rows {compared:.3g}, median cosine of the two {cosine:.2f}"
        if cosine < SAME_ROWS:
            return None, found + ": the rows do not come from the reference's"
    else:
        compared, usual = median_length(positions_PH), WORDS_OVER_POSITIONS
        found += f", of the position rows {compared:.3g}"
    if not words or not compared:
        return None, found + ": no rows to compare"
    power = math.log(words / compared / usual) / math.log(root)
    nearest = round(power)
    if abs(nearest) > 1 or abs(power - nearest) > TOLERANCE:
        return None, found + ": undecided"
    looks = {0: "as in XLM-R", 1: f"{root:.4g} times longer", -1: f"{root:.4g} times shorter"}[nearest]
    return -nearest, f"{found}: stored {looks}"


def check_scale(
    words_RH: torch.Tensor, positions_PH: torch.Tensor, reference_RH: torch.Tensor | None, notes: list[str]
) -> None:
    """Notes the scale of a native checkpoint's words, which its model adds to the positions unscaled, as XLM-R does.

    Raises ValueError for rows that are not of the reference's scale, or not of its tokens. Without a reference there is
    no proof: models may differ in the ratio of words to positions.
    """
    power, found = scale_of_rows(words_RH, positions_PH, reference_RH)
    if reference_RH is not None and power != 0:
        raise ValueError(f"the word embeddings do not fit the reference ({found}): give another --reference or none.")
    notes.append(f"embedding scale: {found}; kept")


def choose_scale(
    setting: str,
    words_RH: torch.Tensor,
    positions_PH: torch.Tensor,
    reference_RH: torch.Tensor | None,
    trained_in_fairseq: bool | None,
    fairseq_multiplies: bool | None,
    notes: list[str],
) -> float:
    """Factor of the word rows on the way from fairseq, where `setting` is auto, keep, multiply or divide.

    `auto` goes by the forward pass where the weights were trained in fairseq, and is then sqrt(H), or 1 if the
    checkpoint says no_scale_embedding; else by `scale_of_rows`, since weights of pre-training were only put into
    fairseq's names. Where it is not known whether they were (None), both have to give the same.

    Raises ValueError where auto cannot tell.
    """
    root = math.sqrt(words_RH.shape[1])
    power, found = scale_of_rows(words_RH, positions_PH, reference_RH)
    if setting != "auto":
        power, why = {"keep": 0, "multiply": 1, "divide": -1}[setting], "as asked for"
    elif fairseq_multiplies is False:
        power, why = 0, "the checkpoint says no_scale_embedding"
    elif trained_in_fairseq and fairseq_multiplies:
        power, why = 1, "its decoder was trained in fairseq, which multiplies by sqrt(hidden size)"
    elif power is None or (trained_in_fairseq is not False and power != 1):
        raise ValueError(
            f"the scale of the word embeddings cannot be told ({found}): say --embedding_scale multiply if the model "
            f"multiplied them by sqrt(hidden size) = {root:.4g}, else keep, or give XLM-R's as --reference."
        )
    else:
        why = "by the lengths"
    done = {0: "kept", 1: f"multiplied by {root:.4g}", -1: f"divided by {root:.4g}"}[power]
    notes.append(f"embedding scale: {found}; {done}, {why}")
    return root**power


def complete_rows(
    words_RH: torch.Tensor, vocabulary: Vocabulary, notes: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the rows that the checkpoint lacks: `<mask>`, always, and those that were pruned if they are to be filled.

    Returns the rows and the ids of the tokens that they stand for.
    """
    ids, size, reference_VH = vocabulary.ids, len(vocabulary.tokenizer), vocabulary.reference_VH
    has_mask = ids[-1] == size - 1
    if vocabulary.fill and len(ids) < size:
        rows_VH = reference_VH.to(words_RH.dtype).clone()
        rows_VH[ids] = words_RH
        notes.append(f"vocabulary: {size - len(ids):,} of {size:,} rows are the reference's")
        return rows_VH, torch.arange(size)
    if not has_mask:
        if reference_VH is not None:
            mask_H = reference_VH[-1]
            notes.append("<mask>: the checkpoint has no row for it; the reference's was taken")
        else:
            mask_H = torch.randn(words_RH.shape[1], generator=torch.Generator().manual_seed(0))
            mask_H = mask_H * words_RH.float().std().item()
            notes.append("<mask>: the checkpoint has no row for it; it is random: train before predicting masked words")
        words_RH = torch.cat([words_RH, mask_H.to(words_RH.dtype)[None]])
        ids = torch.cat([ids, torch.tensor([size - 1])])
    if len(ids) < size:
        notes.append(
            f"vocabulary: {len(ids):,} of {size:,} tokens; where one is missing, text is split into shorter ones"
        )
    return words_RH, ids


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor, folder: str | Path) -> None:
    """Writes the tokenizer with the tokens of these ids only, which are counted anew in the same order.

    Scores, normalizer and templates stay. A text whose best split uses these tokens only keeps it, since the others
    were no part of it.

    Raises ValueError where tokens are left out of a tokenizer that is no list of scored tokens (unigram).
    """
    folder = Path(folder)
    tokenizer.save_pretrained(folder)
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    for trace in ("is_local", "local_files_only"):  # of the load; they would follow the tokenizer to the Hub
        settings.pop(trace, None)
    settings_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if len(ids) == len(tokenizer):
        return
    file = folder / "tokenizer.json"
    description = json.loads(file.read_text(encoding="utf-8"))
    model = description["model"]
    if model.get("type") != "Unigram" or len(model["vocab"]) != len(tokenizer):
        raise ValueError(f"a tokenizer of type {model.get('type')!r} cannot be pruned: give XLM-R's own.")
    new_ids = {old: new for new, old in enumerate(ids.tolist())}
    model["vocab"] = [model["vocab"][old] for old in new_ids]
    for token in description["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    file.write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
