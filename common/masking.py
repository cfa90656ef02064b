"""Which pieces are predicted, and what stands in their place: BERT's 80/10/10, or <mask> always.

Random numbers are keyed by what is masked (seed, objective, corpus, epoch, example), never by who masks it, so that an
example gets the same masks however it is batched, and on whichever process or worker.
"""

import hashlib

import numpy as np

IGNORED = -100  # label of a position that is not predicted: what cross-entropies of torch skip
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


def keyed_rng(*key: int | str) -> np.random.Generator:
    """A generator whose numbers depend on the key alone: the same in every process and on every machine."""
    return np.random.default_rng(keyed_seed(*key))


def keyed_seed(*key: int | str) -> int:
    """128 bits that depend on the key alone. Python's own hash() differs between processes."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())


def mask_pieces(
    ids: np.ndarray,
    special_tokens_mask: np.ndarray,
    probability: float,
    rng: np.random.Generator,
    mask_id: int,
    vocabulary: np.ndarray,
    mask_share: float = MASK_SHARE,
    leave: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks a text: (input_ids, labels), both (T,), labels -100 where nothing is predicted.

    Of the n ordinary positions, floor(probability * n + u) are predicted, u uniform in [0, 1): the expected share is
    exactly `probability` in texts of any length, and texts of one length have nearly the same number (RoBERTa's code,
    fairseq's MaskTokensDataset; a coin per position, as in transformers' collator, has the same mean, more variance).
    They are drawn without replacement; each becomes <mask> with 80%, a random piece of `vocabulary` with 10%, and stays
    with 10% (BERT section 3.1, which RoBERTa, XLM-R and the four papers follow).

    Args:
        ids: (T,) piece ids.
        special_tokens_mask: (T,) true where no prediction may be: special tokens and padding.
        probability: share of the ordinary positions that is predicted, in [0, 1].
        rng: where the random numbers come from, see `keyed_rng`.
        mask_id: id of <mask>.
        vocabulary: (K,) ids of ordinary pieces, from which random replacements are drawn.
        mask_share: share of the predicted pieces that become <mask>; 1 leaves none to be replaced or to stay.
        leave: ordinary positions that are not predicted, however few there are.

    Deviations from the papers: special tokens are never predicted, although XLM-Align's code let them be, and a random
    replacement is never a special token (PAPERS.md, "Common ground").
    """
    candidates = np.flatnonzero(np.logical_not(special_tokens_mask))
    count = max(0, min(int(probability * len(candidates) + rng.random()), len(candidates) - leave))
    input_ids, labels = ids.copy(), np.full_like(ids, IGNORED)
    positions = rng.permutation(candidates)[:count]
    fates = rng.random(count)
    random_pieces = vocabulary[rng.integers(len(vocabulary), size=count)]

    labels[positions] = ids[positions]
    input_ids[positions[fates < mask_share]] = mask_id
    replaced = (fates >= mask_share) & (fates < mask_share + RANDOM_SHARE)
    input_ids[positions[replaced]] = random_pieces[replaced]
    return input_ids, labels
