"""Backbones: any model becomes `Features`, without code for a particular model."""

from vitlet.backbones.base import Backbone, model_img_size
from vitlet.backbones.layer_backbone import LayerBackbone
from vitlet.backbones.timm_backbone import TimmBackbone

__all__ = ["Backbone", "LayerBackbone", "TimmBackbone", "model_img_size"]
