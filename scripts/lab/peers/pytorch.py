"""PyTorch's side of the comparison where Hugging Face has no such model: the same network written plainly, in the environment of
`make parity`.

Depends on the fields of an experiment only, not on the zoo's code. The training loop is eager, with the fastest options on a CPU:
channels last, the fused AdamW.
"""

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from scripts.lab.peers.serve import Run, serve
from scripts.lab.peers.torch_training import description, training


class Conditioned(nn.Module):
    """A norm over channels, a scale and a shift by lead time, ReLU."""

    def __init__(self, size: int, lead_dim: int):
        super().__init__()
        self.scale = nn.Linear(lead_dim, size, bias=False)
        self.shift = nn.Linear(lead_dim, size)

    def forward(self, x: Any, lead: Any) -> Any:
        x = F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2], eps=1e-6)
        x = x * (1 + self.scale(lead)[:, None, None]) + self.shift(lead)[:, None, None]
        return F.relu(x).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A residual block of two dilated convolutions."""

    def __init__(self, size: int, lead_dim: int, dilation: int):
        super().__init__()
        self.before, self.between = Conditioned(size, lead_dim), Conditioned(size, lead_dim)
        self.into, self.out = (nn.Conv2d(size, size, 3, padding=dilation, dilation=dilation) for _ in range(2))

    def forward(self, x: Any, lead: Any) -> Any:
        h = self.into(self.before(x, lead))
        return x + self.out(self.between(h, lead))


class MetNet2(nn.Module):
    """MetNet-2 with repeated positions and without a frame ahead."""

    def __init__(self, m: dict[str, Any]):
        super().__init__()
        self.crop, self.upsample, self.size = m["crop"], m["detail"]["upsample"], m["frame_dim"]
        lead_dim, context, detail = m["lead_dim"], m["context"]["dim"], m["detail"]["dim"]
        self.lead = nn.Embedding(m["leads"], lead_dim)
        self.gates = nn.Conv2d(m["channels"] + m["masks"] + self.size, 4 * self.size, 3, padding=1)
        self.widen = nn.Conv2d(self.size, context, 1)
        self.context = nn.ModuleList(
            Block(context, lead_dim, d) for _ in range(m["context"]["stacks"]) for d in m["context"]["dilations"]
        )
        self.refine = nn.Conv2d(context, detail, 1)
        self.detail = nn.ModuleList(Block(detail, lead_dim, 1) for _ in range(m["detail"]["blocks"]))
        self.before = Conditioned(detail, lead_dim)
        self.hidden = nn.Conv2d(detail, m["detail"]["hidden_dim"], 1)
        self.classes = nn.Conv2d(m["detail"]["hidden_dim"], m["bins"]["count"], 1)

    def forward(self, frames: Any, lead_time: Any) -> Any:
        lead = F.relu(self.lead(lead_time - 1))
        cell = state = frames.new_zeros(len(frames), self.size, *frames.shape[-2:])
        for frame in frames.unbind(1):
            put, keep, show, new = self.gates(torch.cat([frame, state], dim=1)).chunk(4, dim=1)
            cell = torch.sigmoid(keep + 1) * cell + torch.sigmoid(put) * torch.tanh(new)
            state = torch.sigmoid(show) * torch.tanh(cell)
        x = self.widen(state)
        for block in self.context:
            x = block(x, lead)
        top, left = ((whole - kept) // 2 for whole, kept in zip(x.shape[-2:], self.crop, strict=True))
        x = self.refine(x[..., top : top + self.crop[0], left : left + self.crop[1]])
        x = x.repeat_interleave(self.upsample, dim=-2).repeat_interleave(self.upsample, dim=-1)
        for block in self.detail:
            x = block(x, lead)
        return self.classes(F.relu(self.hidden(self.before(x, lead))))


def train(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    torch.manual_seed(0)
    m, d = fields["model"], fields["data"]
    model = MetNet2(m).to(memory_format=torch.channels_last)
    rows, points = d["batch_size"], [size * m["detail"]["upsample"] for size in m["crop"]]

    def loss() -> Any:
        frames = torch.rand(rows, d["frames"], m["channels"] + m["masks"], d["area"]["height"], d["area"]["width"])
        logits = model(frames, torch.randint(1, m["leads"] + 1, (rows,)))
        return F.cross_entropy(logits, torch.randint(m["bins"]["count"], (rows, *points)))

    return description(model, "channels last"), training(model, fields["optimizer"], loss)


if __name__ == "__main__":
    serve(train=train)
