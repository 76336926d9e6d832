"""A task in timm's own kind of loop: one object. Run: python examples/timm_training_task.py"""

import timm
import torch
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter

import vitlet

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 8 - 1
labels = torch.from_numpy(digits.target)
size = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 3, "num_heads": 4}
model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **size)
objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(vitlet.SpatialRelations(), 0.5)])
task = vitlet.TimmTrainingTask(objective)  # a timm.task.TrainingTask: loss and output in one call
optimizer = create_optimizer_v2(task.trainable_module, opt="adamw", lr=2e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=5, warmup_t=1, warmup_lr_init=1e-4)
for epoch in range(5):
    schedule.step(epoch)
    task.epoch, right = float(epoch), AverageMeter()
    task.train()
    for batch in torch.randperm(1400).split(64):
        result = task(images[batch], labels[batch])
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        right.update(float(result["sprel/accuracy"]), len(batch))
    network = task.get_eval_model().eval()  # the plain timm model
    with torch.inference_mode():
        accuracy = (network(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    chance = result["sprel/chance"]
    print(f"epoch {epoch + 1}: accuracy {accuracy:.1%}, sprel/accuracy {right.avg:.1f} % (chance {chance:.1f} %)")
