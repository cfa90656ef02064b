"""The four encoders. Import from the files; importing this package registers nothing with the Auto classes."""

# our types -> how their classes are called; the installed classes load them, and no code of a checkpoint
MODEL_TYPES = {"xlm_align": "XlmAlign", "ernie_m": "ErnieM", "metaxlm": "MetaXlm", "veco": "Veco"}
