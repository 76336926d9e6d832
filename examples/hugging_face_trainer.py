"""A task in Hugging Face's Trainer: the marked lines. Run: python examples/hugging_face_trainer.py"""

import torch
from sklearn.datasets import load_digits
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments, ViTConfig

import vitlet


class SpatialTrainer(Trainer):
    attached: vitlet.Attached

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if model.training:
            loss = loss + self.attached.loss()  # 1: beside the labels
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, *options):
        optimizer = super().create_optimizer(*options)
        optimizer.add_param_group({"params": list(self.attached.parameters())})  # 2: the heads are trained too
        return optimizer


torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 8 - 1
scans = [{"pixel_values": image, "labels": int(label)} for image, label in zip(images, digits.target, strict=True)]
shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
layers = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
model = AutoModelForImageClassification.from_config(ViTConfig(**shape, **layers))
options = TrainingArguments("trainer", num_train_epochs=5, learning_rate=2e-3, per_device_train_batch_size=64,
                            save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True)  # fmt: skip
right = lambda found: {"accuracy": (found[0].argmax(1) == found[1]).mean()}  # noqa: E731
trainer = SpatialTrainer(model, options, train_dataset=scans[:1400], eval_dataset=scans[1400:], compute_metrics=right)
trainer.attached = vitlet.attach(model, [vitlet.SpatialRelations()])  # 3
trainer.train()
print(trainer.evaluate()["eval_accuracy"], {key: float(value) for key, value in trainer.attached.metrics.items()})
