"""PyTorch's side of the comparison where Hugging Face has no such model: the same network written plainly, in the environment of
`make parity`.

Depends on the fields of an experiment only, not on the zoo's code. The training loop has the fastest options on a CPU:
channels last, the fused AdamW.
"""

from collections.abc import Callable
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


def metnet2(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Callable[[], Any], str]:
    """Returns the model, its loss on a new batch, and its memory's order."""
    model = MetNet2(m).to(memory_format=torch.channels_last)
    rows, points = d["batch_size"], [size * m["detail"]["upsample"] for size in m["crop"]]

    def loss() -> Any:
        frames = torch.rand(rows, d["frames"], m["channels"] + m["masks"], d["area"]["height"], d["area"]["width"])
        logits = model(frames, torch.randint(1, m["leads"] + 1, (rows,)))
        return F.cross_entropy(logits, torch.randint(m["bins"]["count"], (rows, *points)))

    return model, loss, "channels last"


class Cross(nn.Module):
    """x0 * (W (V x) + b) + x."""

    def __init__(self, size: int, rank: int):
        super().__init__()
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, size)

    def forward(self, x: Any, x0: Any) -> Any:
        return x0 * self.up(self.down(x)) + x


def layers(inputs: int, widths: list[int]) -> Any:
    """Returns linear layers with ReLU between them."""
    sizes = list(zip([inputs, *widths], widths, strict=False))
    return nn.Sequential(*(part for size in sizes for part in (nn.Linear(*size), nn.ReLU())))[:-1]


class Dlrm(nn.Module):
    """DLRM with cross layers: a bag of vectors for each table, of a few of its rows."""

    def __init__(self, m: dict[str, Any]):
        super().__init__()
        self.hotness = [table["hotness"] for table in m["tables"]]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(table["rows"], m["embedding_dim"], mode="sum")
            if table["hotness"] > 1
            # A bag of one is slower than a row, which has its weight below.
            else nn.Embedding(table["rows"], m["embedding_dim"])
            for table in m["tables"]
        )
        size = (len(self.tables) + 1) * m["embedding_dim"]
        self.bottom = layers(m["dense_features"], m["bottom"])
        self.cross = nn.ModuleList(Cross(size, m["cross_rank"]) for _ in range(m["cross_layers"]))
        self.top = layers(size, m["top"])

    def forward(self, dense: Any, ids: Any, weights: Any) -> Any:
        parts = zip(self.tables, ids.split(self.hotness, 1), weights.split(self.hotness, 1), strict=True)
        vectors = [
            table(i, per_sample_weights=w) if isinstance(table, nn.EmbeddingBag) else table(i[:, 0]) * w for table, i, w in parts
        ]
        x = x0 = torch.cat([F.relu(self.bottom(dense)), *vectors], dim=1)
        for layer in self.cross:
            x = layer(x, x0)
        return self.top(x)[:, 0]


def dlrm(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Callable[[], Any], str]:
    """Returns the model, its loss on a new batch, and how its tables' gradients are held."""
    model, rows = Dlrm(m), d["batch_size"]
    sizes = torch.tensor([table["rows"] for table in m["tables"] for _ in range(table["hotness"])])

    def loss() -> Any:
        ids = torch.randint(2**31 - 1, (rows, len(sizes))) % sizes
        logits = model(torch.rand(rows, m["dense_features"]), ids, torch.ones(rows, len(sizes)))
        return F.binary_cross_entropy_with_logits(logits, torch.randint(2, (rows,)).float())

    return model, loss, "dense gradients"


def train(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    torch.manual_seed(0)
    built = {"MetNet2Config": metnet2, "DlrmConfig": dlrm}[fields["model"]["class"]]
    model, loss, settings = built(fields["model"], fields["data"])
    return description(model, settings), training(model, fields["optimizer"], loss)


if __name__ == "__main__":
    serve(train=train)
