"""VECO: variable encoder-decoder pre-training (Luo et al., ACL 2021).

An XLM-R encoder whose layers carry a cross-attention module that can be plugged in (with another sequence) or out
(without: the encoder is then XLM-R's).
"""

from .configuration_veco import VecoConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .masked_lm import ForMaskedLM, ForPreTraining
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class VecoPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the VECO models."""

    config_class = VecoConfig


class VecoModel(VecoPreTrainedModel, EncoderModel):
    """VECO's encoder; see `EncoderModel.forward`."""


class VecoForPreTraining(VecoPreTrainedModel, ForPreTraining):
    """MLM and TLM; see `ForPreTraining.forward`."""

    encoder_class = VecoModel


class VecoForMaskedLM(VecoPreTrainedModel, ForMaskedLM):
    """Masked-word prediction; see `ForMaskedLM.forward`."""

    encoder_class = VecoModel


class VecoForSequenceClassification(VecoPreTrainedModel, ForSequenceClassification):
    """A label for a text or a pair; see `ForSequenceClassification.forward`."""

    encoder_class = VecoModel


class VecoForTokenClassification(VecoPreTrainedModel, ForTokenClassification):
    """A label for each piece; see `ForTokenClassification.forward`."""

    encoder_class = VecoModel


class VecoForQuestionAnswering(VecoPreTrainedModel, ForQuestionAnswering):
    """Start and end of an answer; see `ForQuestionAnswering.forward`."""

    encoder_class = VecoModel


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
VecoModel.register_for_auto_class("AutoModel")
for model in (
    VecoForPreTraining,
    VecoForMaskedLM,
    VecoForSequenceClassification,
    VecoForTokenClassification,
    VecoForQuestionAnswering,
):
    model.register_for_auto_class("AutoModel" + model.__name__.removeprefix("Veco"))
