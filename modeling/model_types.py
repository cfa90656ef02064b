# SPDX-License-Identifier: Apache-2.0
"""The model types of the zoo."""

# our types -> how their classes are called; the installed classes load them, and no code of a checkpoint
MODEL_TYPES = {"xlm_align": "XlmAlign", "ernie_m": "ErnieM", "metaxlm": "MetaXlm", "veco": "Veco"}
