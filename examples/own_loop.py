"""Your own training loop with DRLoc: the three marked lines are all that vitlet adds.

Run: python examples/own_loop.py
"""

import timm
import torch
from sklearn.datasets import load_digits

import vitlet

EPOCHS = 15

digits = load_digits()  # real scans, 8 x 8
images = torch.from_numpy(digits.images).float()[:, None] / 8 - 1
labels = torch.from_numpy(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, test = order[:1400], order[1400:]

torch.manual_seed(0)
torch.set_num_threads(1)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, embed_dim=64, depth=4, num_heads=4, num_classes=10
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)

task = vitlet.Term(vitlet.DRLoc(pairs=32, hidden=128), 0.5)
objective = vitlet.Objective(vitlet.TimmBackbone(model, img_size=8), [task])  # 1: join model and task
optimizer.add_param_group({"params": list(objective.task_parameters())})  # 2: train the task's head too

for epoch in range(EPOCHS):
    model.train()
    for batch in train[torch.randperm(len(train))].split(64):
        outcome = objective(images[batch], labels[batch])  # 3: in place of criterion(model(images), labels)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    error, chance = outcome.metrics["drloc/error_cells"], outcome.metrics["drloc/chance_cells"]
    print(f"epoch {epoch + 1:2d}  test accuracy {accuracy:.1%}  drloc error {error:.2f} cells (chance {chance:.2f})")
