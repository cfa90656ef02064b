"""ERNIE-M: enhanced multilingual representation by aligning cross-lingual semantics (Ouyang et al., EMNLP 2021).

XLM-R's shape with a tanh pooler on the base model.
"""

from .configuration_ernie_m import ErnieMConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .masked_lm import ForMaskedLM, ForPreTraining
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class ErnieMPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the ERNIE-M models."""

    config_class = ErnieMConfig


class ErnieMModel(ErnieMPreTrainedModel, EncoderModel):
    """ERNIE-M's encoder; see `EncoderModel.forward`."""


class ErnieMForPreTraining(ErnieMPreTrainedModel, ForPreTraining):
    """MLM and TLM; see `ForPreTraining.forward`."""

    encoder_class = ErnieMModel


class ErnieMForMaskedLM(ErnieMPreTrainedModel, ForMaskedLM):
    """Masked-word prediction; see `ForMaskedLM.forward`."""

    encoder_class = ErnieMModel


class ErnieMForSequenceClassification(ErnieMPreTrainedModel, ForSequenceClassification):
    """A label for a text or a pair; see `ForSequenceClassification.forward`."""

    encoder_class = ErnieMModel


class ErnieMForTokenClassification(ErnieMPreTrainedModel, ForTokenClassification):
    """A label for each piece; see `ForTokenClassification.forward`."""

    encoder_class = ErnieMModel


class ErnieMForQuestionAnswering(ErnieMPreTrainedModel, ForQuestionAnswering):
    """Start and end of an answer; see `ForQuestionAnswering.forward`."""

    encoder_class = ErnieMModel


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
ErnieMModel.register_for_auto_class("AutoModel")
for model in (
    ErnieMForPreTraining,
    ErnieMForMaskedLM,
    ErnieMForSequenceClassification,
    ErnieMForTokenClassification,
    ErnieMForQuestionAnswering,
):
    model.register_for_auto_class("AutoModel" + model.__name__.removeprefix("ErnieM"))
