"""The toy on the circle: its points, batches and training."""

import torch

import studies.pnp_circle as circle
from frontrank.losses import PNP


def test_batches_by_hand():
    rows = circle.batch_rows(10).unflatten(0, (4, 16))
    assert rows[:, 0].tolist() == [170 % 150, 150 + 190 % 150, 300 + 230 % 150, 450 + 290 % 150]
    assert rows[3].tolist() == [450 + (140 + k) % 150 for k in range(16)]
    assert (circle.labels()[rows] == torch.arange(4)[:, None]).all()


def test_training_is_that_of_torch():
    """Against a network of torch's own layers."""
    data, loss = circle.make_toy("centres", 3), PNP("D_s", temperature=0.1)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 30), torch.nn.ReLU(), torch.nn.Linear(30, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2)
    ).double()
    with torch.no_grad():
        for own, weight in zip(net.parameters(), data.weights, strict=True):
            own.copy_(weight)
    optimizer = torch.optim.Adam(net.parameters(), lr=circle.RATE)
    for step in range(3):
        rows = circle.batch_rows(step)
        optimizer.zero_grad()
        loss(net(data.train[rows]), circle.labels()[rows]).backward()
        optimizer.step()
    steps = []
    weights = circle.train(data, loss, 3, lambda step, _: steps.append(step))
    assert steps == [0, 1, 2, 3]
    for own, weight in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(own.detach(), weight)
