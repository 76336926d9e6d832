"""A task in a Lightning module: the two marked lines. Run: python examples/lightning_module.py"""

import lightning
import timm
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import vitlet


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        size = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 3, "num_heads": 4}
        self.model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **size)
        self.attached = vitlet.attach(self.model, [vitlet.SpatialRelations()])  # 1: heads are trained with the module

    def training_step(self, batch, index):
        loss = cross_entropy(self.model(batch[0]), batch[1]) + self.attached.loss()  # 2: beside the labels
        self.log_dict(self.attached.metrics, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


lightning.seed_everything(0)
digits = load_digits()
scans = TensorDataset(torch.from_numpy(digits.images).float()[:, None] / 8 - 1, torch.from_numpy(digits.target))
train, test = random_split(scans, [1400, 397])
trainer = lightning.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Digits(), DataLoader(train, 64, shuffle=True), DataLoader(test, 397))
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
