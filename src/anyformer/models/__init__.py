"""Model shapes, from embedding to named outputs: one stack, encoder-decoder, two or three towers, towers that feed a
decoder or an encoder, masked spans of several modalities, and image autoencoders."""

from anyformer.models.autoencoder import AutoencoderModel, AutoencoderModule
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.models.decoder_with_towers import (
    Tower,
    TowerDecoderModel,
    TowerDecoderModule,
    TowerEncoderModel,
    TowerInputModule,
)
from anyformer.models.encoder_decoder import EncoderDecoderModel, EncoderDecoderModule
from anyformer.models.hidden_spans import HiddenSpansModel, HiddenSpansModelModule
from anyformer.models.last_token_start import LastTokenStartModel
from anyformer.models.model import Model, position_limit
from anyformer.models.output import Output
from anyformer.models.single_stack import DecoderModel, EncoderModel, OneStackModule
from anyformer.models.towers import ThreeTowerModel, ThreeTowerModule, TwoTowerModel, TwoTowerModule

__all__ = [
    "AutoencoderModel", "AutoencoderModule", "Call", "DecoderModel", "EncoderDecoderModel", "EncoderDecoderModule",
    "EncoderModel", "HiddenSpansModel", "HiddenSpansModelModule", "LastTokenStartModel", "Model", "OneStackModule",
    "Output", "ThreeTowerModel", "ThreeTowerModule", "Tower", "TowerDecoderModel", "TowerDecoderModule",
    "TowerEncoderModel", "TowerInputModule", "TransformerModule", "TwoTowerModel", "TwoTowerModule", "position_limit",
]  # fmt: skip
