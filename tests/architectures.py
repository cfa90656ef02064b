"""Small encoders of other architectures: what their configurations have in addition to size and special ids."""

ARCHITECTURES = {
    "modernbert": {"local_attention": 8},  # layers 1 and 2 see four positions to either side
    "eurobert": {},
    "deberta-v2": dict(
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
    ),
}
