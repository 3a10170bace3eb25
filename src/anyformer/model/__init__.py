"""Model shapes, from embedding to named outputs: one stack, a pair, two towers, towers into a decoder, and an
autoencoder of pictures."""

from anyformer.model.autoencoder import AutoencoderModel, AutoencoderModule
from anyformer.model.base import Model, TransformerModule, position_limit
from anyformer.model.one import DecoderModel, EncoderModel, OneStackModule
from anyformer.model.output import Output
from anyformer.model.pair import EncoderDecoderModel, EncoderDecoderModule
from anyformer.model.spans import HiddenSpansModel, HiddenSpansModelModule
from anyformer.model.tower_decoder import (
    FedModule,
    Tower,
    TowerDecoderModel,
    TowerDecoderModule,
    TowerEncoderModel,
)
from anyformer.model.towers import ThreeTowerModel, ThreeTowerModule, TwoTowerModel, TwoTowerModule

__all__ = [
    "AutoencoderModel", "AutoencoderModule", "DecoderModel", "EncoderDecoderModel", "EncoderDecoderModule",
    "EncoderModel", "FedModule", "HiddenSpansModel", "HiddenSpansModelModule", "Model", "OneStackModule", "Output",
    "ThreeTowerModel", "ThreeTowerModule", "Tower",
    "TowerDecoderModel", "TowerDecoderModule", "TowerEncoderModel", "TransformerModule", "TwoTowerModel",
    "TwoTowerModule", "position_limit",
]  # fmt: skip
