"""Handwritten digits, trained by a script with its own loop: see README.md in this folder."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

import torch_edl

parser = argparse.ArgumentParser(description="Train a small network on scanned digits.")
parser.add_argument("--epochs", type=int, default=8, help="passes over the data (default 8)")
parser.add_argument("--batch-size", type=int, default=32, help="digits in a minibatch (default 32)")
parser.add_argument("--seed", type=int, default=0, help="of the weights and the order (default 0)")
args = parser.parse_args()
torch.manual_seed(args.seed)
job = torch_edl.init(seed=args.seed)  # line 1: this process is part of a job

# 1,797 images of 8x8 pixels; a fifth of them, picked at random, is held out.
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train = data.TensorDataset(images[order[360:]], labels[order[360:]])
test_images, test_labels = images[order[:360]], labels[order[:360]]

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
model, optimizer = job.prepare(model, optimizer)  # line 2: shared by all processes
batches = job.loader(train, batch_size=args.batch_size, shuffle=True)  # line 3: replaces DataLoader

for _ in range(args.epochs):
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    right = model(test_images).argmax(1) == test_labels
print(f"test accuracy {right.float().mean():.4f}")
