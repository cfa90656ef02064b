"""Word embeddings of a foreign checkpoint: which subword a row stands for, how long the rows are, which are missing.

Legend: `V` subwords of the tokenizer, `R` rows of the checkpoint, `P` positions, `H` hidden size.
"""

import json
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, in XLM-R and in fairseq
LISTED_NOWHERE = len(SPECIALS) + 1  # subwords that fairseq's dict.txt leaves out: these and <mask>

# Word rows over position rows, in median length, of models that add the two unscaled: 1.0 to 2.4 in this project's
# runs. Between a model that scales words by sqrt(H) and one that does not lie at least that factor.
WORDS_OVER_POSITIONS = 1.5
# How far from a whole power of sqrt(H) a ratio of lengths may lie, in the logarithm, to be taken for that power.
TOLERANCE = 0.4
SAME_ROWS = 0.5  # median cosine of rows that come from one another; of unrelated rows it is near 0


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """An XLM-R tokenizer, from a folder or the Hub.

    Raises ValueError where there is none, or one whose special subwords have other ids than XLM-R's.
    """
    try:
        # a tokenizer needs none of the folder's code; without this the user would be asked whether to run it
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer could be loaded from {name!r}: {str(error).splitlines()[0]} A checkpoint without one cannot "
            "be used. Give an XLM-R tokenizer: a folder that holds one, or FacebookAI/xlm-roberta-large."
        ) from error
    expected = dict(zip((*SPECIALS, "<mask>"), (*range(len(SPECIALS)), len(tokenizer) - 1), strict=True))
    found = {subword: tokenizer.get_vocab().get(subword) for subword in expected}
    if found != expected:
        raise ValueError(
            f"the tokenizer {name!r} has the special tokens {found}: the rows of the checkpoint are in XLM-R's "
            f"order, {expected}. Give an XLM-R tokenizer."
        )
    return tokenizer


def read_vocabulary_map(path: str | Path, vocabulary: int) -> torch.Tensor:
    """Ids (K,) of the subwords, without `<mask>`, that a map of a pruned vocabulary keeps.

    The map has one 0 or 1 a line, for all V ids, or for the V - 5 subwords of fairseq's dict.txt, which lists neither
    the four first special subwords nor `<mask>` (the `--resized-dict-map` of VECO's fairseq scripts).

    Raises ValueError for another line, another number of lines, and special subwords that are not kept.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the vocabulary map {str(path)!r} cannot be read: {error}. It is a text of one 0 or 1 a line."
        ) from error
    for number, line in enumerate(lines, start=1):
        if line.strip() not in ("0", "1"):
            raise ValueError(
                f"line {number} of {path} is {line!r}: a vocabulary map says 1 (kept) or 0 (left out) for each token. "
                "Correct the line; a line may not be empty."
            )
    kept = torch.tensor([line.strip() == "1" for line in lines])
    if len(kept) == vocabulary - LISTED_NOWHERE:
        kept = torch.cat([torch.ones(len(SPECIALS), dtype=torch.bool), kept])
    elif len(kept) != vocabulary:
        raise ValueError(
            f"{path} has {len(kept):,} lines and the tokenizer {vocabulary:,} tokens: a map has a line for every "
            f"token, or for the {vocabulary - LISTED_NOWHERE:,} of fairseq's dict.txt. Give the map and the tokenizer "
            "of one vocabulary."
        )
    if not kept[: len(SPECIALS)].all():
        raise ValueError(
            f"{path} leaves out one of {', '.join(SPECIALS)}: a model cannot read text without them. Set the first "
            f"{len(SPECIALS)} lines to 1."
        )
    return kept[: vocabulary - 1].nonzero()[:, 0]


def tokens_of_rows(rows: int, vocabulary: int, kept: torch.Tensor | None) -> torch.Tensor:
    """Ids (R,) that the rows stand for: all, or those `kept`; `<mask>`, the last, may be absent.

    Raises ValueError for a number of rows that is neither.
    """
    subwords = torch.arange(vocabulary - 1) if kept is None else kept
    if rows not in (len(subwords), len(subwords) + 1):
        source = f"the tokenizer has {vocabulary:,} tokens"
        if kept is not None:
            source = f"the vocabulary map keeps {len(kept):,} tokens beside <mask>"
        raise ValueError(
            f"the checkpoint has {rows:,} word embeddings and {source}: it is not known which token a row stands for. "
            "Give the tokenizer of the checkpoint, and --vocabulary_map with the map it was pruned by."
        )
    return subwords if rows == len(subwords) else torch.cat([subwords, torch.tensor([vocabulary - 1])])


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
    sqrt(H) times shorter. Compared are the rows of the same subwords in a reference where there is one, and the
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
) -> float:
    """Factor of the rows of a native checkpoint: 1, since its model adds words and positions unscaled, as XLM-R does.

    What the lengths show is noted. Only a reference is proof: models may differ in the ratio of words to positions.

    Raises ValueError for rows that are not of the reference's scale, or not of its subwords.
    """
    power, found = scale_of_rows(words_RH, positions_PH, reference_RH)
    if reference_RH is not None and power != 0:
        raise ValueError(
            f"the word embeddings do not fit the reference ({found}): native checkpoints hold them "
            "as XLM-R does, and a model with rows of another scale, or of other tokens, reads noise. Give --reference "
            "the XLM-R checkpoint that VECO started from, and --tokenizer its tokenizer; leave --reference out to take "
            "the rows as they are."
        )
    notes.append(f"embedding scale: {found}; kept")
    return 1.0


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
    why = "as asked for"
    if setting == "auto":
        if fairseq_multiplies is False:
            power, why = 0, "the checkpoint says no_scale_embedding"
        elif trained_in_fairseq and fairseq_multiplies:
            power, why = 1, "its decoder was trained in fairseq, which multiplies by sqrt(hidden size)"
        elif trained_in_fairseq is None and power != 1:
            raise ValueError(
                f"the scale of the word embeddings cannot be told ({found}): the checkpoint says that fairseq "
                f"multiplies them by sqrt(hidden size) = {root:.4g}, and its decoder is all encoder layers again. That "
                "is a tied model that was trained in fairseq, whose rows are made for it, or VECO's pre-trained one, "
                "which was only put into fairseq's names. Say --embedding_scale multiply for the first, which keeps "
                "its logits, and keep for the second where its rows are as long as XLM-R's."
            )
        elif trained_in_fairseq and power != 1:
            raise ValueError(
                f"the scale of the word embeddings cannot be told ({found}): the decoder was trained in fairseq (the "
                "pre-trained one is all encoder layers again), and the checkpoint has no args that say whether with "
                "--no-scale-embedding, that is without multiplying the words by sqrt(hidden size) = "
                f"{root:.4g}. Say --embedding_scale multiply where it was trained without that option, as VECO's "
                "scripts do, and keep where with."
            )
        else:
            why = "by the lengths"
        if power is None:
            raise ValueError(
                f"the scale of the word embeddings cannot be told ({found}): fairseq's translation models multiply "
                f"them by sqrt(hidden size) = {root:.4g}, XLM-R does not, and a wrong guess ruins the model. Give "
                "--reference with the XLM-R checkpoint that VECO started from; or say --embedding_scale multiply where "
                f"the rows are stored {root:.4g} times shorter than XLM-R's, and keep where they are not."
            )
    else:
        power = {"keep": 0, "multiply": 1, "divide": -1}[setting]
    done = {0: "kept", 1: f"multiplied by {root:.4g}", -1: f"divided by {root:.4g}"}[power]
    notes.append(f"embedding scale: {found}; {done}, {why}")
    return root**power


def complete_rows(
    words_RH: torch.Tensor,
    subwords: torch.Tensor,
    vocabulary: int,
    reference_VH: torch.Tensor | None,
    fill: bool,
    notes: list[str],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the rows that the checkpoint lacks: `<mask>`, always, and with `fill` all that were pruned.

    Returns the rows and the subwords that they stand for.

    Raises ValueError for `fill` without a reference.
    """
    absent = vocabulary - len(subwords)
    if fill and absent and reference_VH is None:
        raise ValueError(
            f"the checkpoint lacks {absent:,} of {vocabulary:,} word embeddings and --fill_vocabulary was given "
            "without --reference: there is nothing to fill them with. Name an XLM-R or VECO folder, or leave "
            "--fill_vocabulary out to get the pruned vocabulary."
        )
    if fill and absent:
        rows_VH = reference_VH.to(words_RH.dtype).clone()
        rows_VH[subwords] = words_RH
        mask = "with" if subwords[-1] != vocabulary - 1 else "without"
        notes.append(f"vocabulary: {absent:,} of {vocabulary:,} rows are the reference's, {mask} that of <mask>")
        return rows_VH, torch.arange(vocabulary)
    if subwords[-1] != vocabulary - 1:
        if reference_VH is not None:
            mask_H = reference_VH[-1].to(words_RH.dtype)
            notes.append("<mask>: the checkpoint has no row for it; the reference's was taken")
        else:
            deviation = words_RH.float().std().item()
            noise = torch.randn(words_RH.shape[1], generator=torch.Generator().manual_seed(0))
            mask_H = (noise * deviation).to(words_RH.dtype)
            notes.append(
                "<mask>: the checkpoint has no row for it; it is fresh (normal, with the deviation of the other rows, "
                f"{deviation:.3g}): train before masked-word prediction"
            )
        words_RH = torch.cat([words_RH, mask_H[None]])
        subwords = torch.cat([subwords, torch.tensor([vocabulary - 1])])
    if len(subwords) < vocabulary:
        notes.append(
            f"vocabulary: {len(subwords):,} of {vocabulary:,} tokens. Text made of them is split as before; where a "
            "longer token was left out, it is split into shorter ones (VECO's fairseq scripts read <unk> there)"
        )
    return words_RH, subwords


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, subwords: torch.Tensor, folder: str | Path) -> None:
    """Writes the tokenizer, with these subwords only, their ids counted anew in the same order.

    Scores, normalizer and templates stay. A text whose best split uses these subwords only keeps it, since the others
    were no part of it.

    Raises ValueError where subwords are left out of a tokenizer that is no list of scored subwords (unigram).
    """
    folder = Path(folder)
    tokenizer.save_pretrained(folder)
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    for trace in ("is_local", "local_files_only"):  # of the load; they would follow the tokenizer to the Hub
        settings.pop(trace, None)
    settings_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if len(subwords) == len(tokenizer):
        return
    file = folder / "tokenizer.json"
    description = json.loads(file.read_text(encoding="utf-8"))
    model = description["model"]
    if model.get("type") != "Unigram" or len(model["vocab"]) != len(tokenizer):
        raise ValueError(
            f"the tokenizer is of type {model.get('type')!r} and cannot be pruned: only a unigram model is a list of "
            "tokens that can be left out one by one. Give XLM-R's own tokenizer, or use --fill_vocabulary with "
            "--reference."
        )
    kept = subwords.tolist()
    new_ids = {old: new for new, old in enumerate(kept)}
    model["vocab"] = [model["vocab"][old] for old in kept]
    for token in description["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    file.write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
