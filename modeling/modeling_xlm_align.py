"""XLM-Align: cross-lingual pre-training by self-labelled word alignment (Chi et al., ACL 2021).

XLM-R's shape; `microsoft/xlm-align-base` is an XLM-R checkpoint and loads as it is.
"""

from .configuration_xlm_align import XlmAlignConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .masked_lm import ForMaskedLM, ForPreTraining
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class XlmAlignPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the XLM-Align models."""

    config_class = XlmAlignConfig


class XlmAlignModel(XlmAlignPreTrainedModel, EncoderModel):
    """XLM-Align's encoder; see `EncoderModel.forward`."""


class XlmAlignForPreTraining(XlmAlignPreTrainedModel, ForPreTraining):
    """MLM and TLM; see `ForPreTraining.forward`."""

    encoder_class = XlmAlignModel


class XlmAlignForMaskedLM(XlmAlignPreTrainedModel, ForMaskedLM):
    """Masked-word prediction; see `ForMaskedLM.forward`."""

    encoder_class = XlmAlignModel


class XlmAlignForSequenceClassification(XlmAlignPreTrainedModel, ForSequenceClassification):
    """A label for a text or a pair; see `ForSequenceClassification.forward`."""

    encoder_class = XlmAlignModel


class XlmAlignForTokenClassification(XlmAlignPreTrainedModel, ForTokenClassification):
    """A label for each piece; see `ForTokenClassification.forward`."""

    encoder_class = XlmAlignModel


class XlmAlignForQuestionAnswering(XlmAlignPreTrainedModel, ForQuestionAnswering):
    """Start and end of an answer; see `ForQuestionAnswering.forward`."""

    encoder_class = XlmAlignModel


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
XlmAlignModel.register_for_auto_class("AutoModel")
for model in (
    XlmAlignForPreTraining,
    XlmAlignForMaskedLM,
    XlmAlignForSequenceClassification,
    XlmAlignForTokenClassification,
    XlmAlignForQuestionAnswering,
):
    model.register_for_auto_class("AutoModel" + model.__name__.removeprefix("XlmAlign"))
