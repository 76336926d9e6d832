"""A task in fastai: a callback. Run: python examples/fastai_callback.py"""

import torch
from fastai.callback.core import Callback
from fastai.callback.schedule import Learner
from fastai.data.core import DataLoaders
from fastai.metrics import accuracy
from sklearn.datasets import load_digits
from timm import create_model
from torch.utils.data import TensorDataset, random_split

import vitlet


class Spatial(Callback):
    def __init__(self, attached: vitlet.Attached) -> None:
        self.attached = attached

    def after_loss(self) -> None:
        if self.training:
            self.learn.loss_grad = self.learn.loss_grad + self.attached.loss()

    def after_train(self) -> None:
        print({name: round(float(value), 3) for name, value in self.attached.metrics.items()})


torch.manual_seed(0)
digits = load_digits()
scans = TensorDataset(torch.from_numpy(digits.images).float()[:, None] / 8 - 1, torch.from_numpy(digits.target))
loaders = DataLoaders.from_dsets(*random_split(scans, [1400, 397]), bs=64, device="cpu", num_workers=0)
size = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 3, "num_heads": 4}
model = create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **size)
attached = vitlet.attach(model, [vitlet.SpatialRelations()])
everything = lambda model: [[*model.parameters(), *attached.parameters()]]  # noqa: E731  the heads are trained too
learner = Learner(
    loaders, model, torch.nn.CrossEntropyLoss(), splitter=everything, metrics=accuracy, cbs=Spatial(attached)
)
learner.fit_one_cycle(5, 2e-3)
