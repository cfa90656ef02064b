"""MetaXLM: cross-lingual language model meta-pretraining (Chi et al., 2021).

XLM-R's shape; what the paper adds happens before and between training phases, in pretraining/.
"""

from .configuration_metaxlm import MetaXlmConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .masked_lm import ForMaskedLM, ForPreTraining
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class MetaXlmPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the MetaXLM models."""

    config_class = MetaXlmConfig


class MetaXlmModel(MetaXlmPreTrainedModel, EncoderModel):
    """MetaXLM's encoder; see `EncoderModel.forward`."""


class MetaXlmForPreTraining(MetaXlmPreTrainedModel, ForPreTraining):
    """MLM and TLM; see `ForPreTraining.forward`."""

    encoder_class = MetaXlmModel


class MetaXlmForMaskedLM(MetaXlmPreTrainedModel, ForMaskedLM):
    """Masked-word prediction; see `ForMaskedLM.forward`."""

    encoder_class = MetaXlmModel


class MetaXlmForSequenceClassification(MetaXlmPreTrainedModel, ForSequenceClassification):
    """A label for a text or a pair; see `ForSequenceClassification.forward`."""

    encoder_class = MetaXlmModel


class MetaXlmForTokenClassification(MetaXlmPreTrainedModel, ForTokenClassification):
    """A label for each piece; see `ForTokenClassification.forward`."""

    encoder_class = MetaXlmModel


class MetaXlmForQuestionAnswering(MetaXlmPreTrainedModel, ForQuestionAnswering):
    """Start and end of an answer; see `ForQuestionAnswering.forward`."""

    encoder_class = MetaXlmModel


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
MetaXlmModel.register_for_auto_class("AutoModel")
for model in (
    MetaXlmForPreTraining,
    MetaXlmForMaskedLM,
    MetaXlmForSequenceClassification,
    MetaXlmForTokenClassification,
    MetaXlmForQuestionAnswering,
):
    model.register_for_auto_class("AutoModel" + model.__name__.removeprefix("MetaXlm"))
