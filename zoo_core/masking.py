"""Chooses the tokens to predict, and replaces them: BERT's 80/10/10 rule, or always <mask>.

Legend: `B` rows, `T` positions, `P` predicted positions of all rows, `F` all positions of all rows.
"""

import numpy as np

from crosslingual_zoo.zoo_core.keyed_random import bits_of, scramble_32, uniform_of

IGNORED = -100  # label of a position that is not predicted: what cross-entropies of torch skip
RANDOM_SHARE = 0.1
LAST_32 = np.uint32(2**32 - 1)


def mask_rows(
    input_ids_BT: np.ndarray,
    labels_BT: np.ndarray,
    candidates_BT: np.ndarray,
    probability: float | np.ndarray,
    keys_B: np.ndarray,
    mask_id: int,
    vocabulary: np.ndarray,
    mask_share: float = 0.8,
    leave: int = 0,
) -> None:
    """Masks texts in place: writes the masked tokens to `input_ids_BT` and the tokens to predict to `labels_BT`.

    Of the n candidates of a row, floor(probability * n + u) are predicted, u uniform in [0, 1). The expected share is
    exactly `probability` in texts of any length, with less variance than a coin per position (fairseq's
    MaskTokensDataset). The predicted tokens are those with the smallest random numbers, so an example gets the same
    masks with any batching and padding. Each becomes <mask> with 80%, a random token of `vocabulary` with 10%, and
    stays with 10% (BERT section 3.1, which RoBERTa, XLM-R and the four papers follow).

    Args:
        input_ids_BT, labels_BT: token ids, with any padding, and labels; only predicted positions change. Contiguous.
        candidates_BT: true where a prediction may be: no special tokens, no padding.
        probability: share of the candidates that is predicted, in [0, 1]: one number, or one for each row (B,).
        keys_B: key of each row's random numbers, see `row_keys`.
        mask_id, vocabulary: id of <mask>, and (K,) ids of ordinary tokens, which replace others at random.
        mask_share: share of the predicted tokens that become <mask>; with 1 none is replaced at random or stays.
        leave: at least this many candidates of a row are not predicted.

    Deviations from the papers: special tokens are never predicted, although XLM-Align's code let them be, and a random
    replacement is never a special token.
    """
    width = input_ids_BT.shape[1]
    size_B = np.count_nonzero(candidates_BT, axis=1)
    count_B = (probability * size_B + uniform_of(keys_B)).astype(np.int64)
    count_B = np.minimum(count_B, size_B - leave).clip(min=0)
    if not count_B.any():
        return
    bits_BT = bits_of(keys_B, width)
    # a row's last predicted number; positions that are no candidates sort last
    ordered_BT = np.where(candidates_BT, bits_BT, LAST_32)
    ordered_BT.sort(axis=1)
    last_B = ordered_BT[np.arange(len(count_B)), np.maximum(count_B, 1) - 1]
    chosen_BT = bits_BT <= last_B[:, None]
    chosen_BT &= candidates_BT
    if not count_B.all():
        chosen_BT[count_B == 0] = False

    positions_P = np.flatnonzero(chosen_BT)
    input_ids_F = input_ids_BT.reshape(-1)
    labels_F = labels_BT.reshape(-1)
    gold_P = input_ids_F[positions_P]
    labels_F[positions_P] = gold_P
    input_ids_F[positions_P] = mask_id
    if mask_share == 1.0:
        return
    # new numbers, which do not depend on the rank
    fate_P = bits_BT.reshape(-1)[positions_P] ^ keys_B.astype(np.uint32)[positions_P // width]
    scramble_32(fate_P, np.empty_like(fate_P))
    first = np.uint32(mask_share * 2**32)
    last = np.uint32((mask_share + RANDOM_SHARE) * 2**32)
    is_other_P = fate_P >= first
    fates = fate_P[is_other_P]
    stays = fates >= last
    # of K tokens none is more probable than another by more than K in a tenth of 2^32
    numbers = (fates - first).astype(np.uint64) * np.uint64(len(vocabulary)) // np.uint64(last - first)
    drawn = vocabulary[np.where(stays, 0, numbers)]
    input_ids_F[positions_P[is_other_P]] = np.where(stays, gold_P[is_other_P], drawn)
