"""CLIP's and SigLIP's experiments.

Learning Transferable Visual Models From Natural Language Supervision (CLIP, arXiv 2103.00020): table 20 has the towers, section
2.5 and table 18 the training, on 400 million pictures with texts that are not public. Sigmoid Loss for Language Image
Pre-Training (SigLIP, arXiv 2303.15343): WebLI, not public either; SigLIP 2 (arXiv 2502.14786). Pictures and texts are random
here but for the quickstart's. Numbers of parameters are sums of the tensors' sizes (derived); those of CLIP agree with the
released files' (from memory).
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, HeldOut, Train
from configs.multimodal import emoji
from configs.optimizers import AdamW, Cosine, InverseSqrt
from configs.vit import vit
from data.multimodal.config import MultimodalData, Packing
from models.clip.config import ClipConfig, EndPooling, FilledPooling, SigmoidLoss, TextTower
from models.execution import Execution
from models.parts.attention.config import GroupedQuery, Learned
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fully_sharded
from models.vit.config import MapPooling, VitConfig

_NORM = NormConfig(kind="layer", bias=True, eps=1e-5)


def text(layers: int, dim: int, hidden: int, heads: int, **fields: Any) -> TextTower:
    """A text tower by its sizes."""
    activation = "gelu_sigmoid" if fields.get("causal", True) else "gelu_tanh"
    return TextTower(
        layers=layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=dim // heads, biases="qkvo"),
        feed_forward=Dense(hidden_dim=hidden, activation=activation, bias=True),
        **fields,
    )


def clip(vision: VitConfig, layers: int, dim: int, heads: int, out: int) -> ClipConfig:
    """CLIP by its image tower and the sizes of its text tower: a class token, a norm before layers, patches without biases."""
    own = {"head.classes": 0, "norm": _NORM, "feed_forward.activation": "gelu_sigmoid"}
    own |= {"patches.bias": False, "patches.norm": True}
    words = text(layers, dim, 4 * dim, heads, vocab=49_408, norm=_NORM, pooling=EndPooling())
    return ClipConfig(vision=changed(vision, own), text=words, dim=out)


def siglip(vision: VitConfig, words: dict[str, Any], vocab: int = 32_000, pad_id: int = 1) -> ClipConfig:
    """SigLIP by its image tower, whose vectors are pooled by attention, and the sizes of its text tower."""
    fields: dict[str, Any] = dict(vocab=vocab, causal=False, positions=Learned(rows=64), pooling=FilledPooling(pad_id=pad_id))
    seen = changed(vision, {"head.classes": 0, "pooling": MapPooling()})
    return ClipConfig(vision=seen, text=text(**words, **fields), dim=vision.model_dim, projections="text", loss=SigmoidLoss())


def experiment(model: ClipConfig, layout: Layout, batch: int, steps: int, **fields: Any) -> Experiment:
    """CLIP's training (table 18): 32 passes over 400 million pictures, Adam, a decay of .2, a cosine."""
    height, width, _ = model.picture
    schedule = Cosine(peak=fields.pop("peak", 5e-4), steps=steps, warmup=2000)
    return Experiment(
        model=model,
        layout=layout,
        data=MultimodalData(batch_size=batch, height=height, width=width, seconds=0.0, targets_length=model.text.positions.rows),
        optimizer=AdamW(schedule=schedule, b2=0.98, weight_decay=0.2),
        train=Train(steps=steps, clip_norm=1.0, checkpoint=Checkpointing(every=5000, keep=3), log_every=100),
        eval=HeldOut(split="test", batch_size=batch),
        execution=Execution(dtype="bfloat16", **fields),
    )


def b32() -> Experiment:
    """CLIP ViT-B/32: 151,277,313 parameters."""
    return experiment(clip(vit(12, 768, 3072, 12, 32), 12, 512, 8, 512), data_parallel(64, 1), 32_768, 390_625)


def b16() -> Experiment:
    """CLIP ViT-B/16: 149,620,737 parameters."""
    return replace(b32(), model=clip(vit(12, 768, 3072, 12, 16), 12, 512, 8, 512))


def l14() -> Experiment:
    """CLIP ViT-L/14: 427,616,513 parameters; the paper's largest, whose peak rate is 4e-4."""
    model = clip(vit(24, 1024, 4096, 16, 14), 12, 768, 12, 768)
    return experiment(model, fully_sharded(128, 1), 32_768, 390_625, peak=4e-4, remat="full")


def siglip_b16() -> Experiment:
    """SigLIP B/16 of 224 pixels: 203,155,970 parameters, 32,768 pictures a step (section 4)."""
    words = dict(layers=12, dim=768, hidden=3072, heads=12)
    e = experiment(siglip(vit(12, 768, 3072, 12, 16), words), data_parallel(64, 1), 32_768, 276_000, peak=1e-3)
    schedule = InverseSqrt(scale=1e-3 * 100, flat=10_000, warmup=10_000)
    return replace(e, optimizer=AdamW(schedule=schedule, b2=0.95, weight_decay=1e-4))


def siglip2_b16() -> Experiment:
    """SigLIP 2 B/16 of 224 pixels: 375,187,970 parameters, of which the vocabulary of 256,000 has more than half."""
    words = dict(layers=12, dim=768, hidden=3072, heads=12)
    return replace(siglip_b16(), model=siglip(vit(12, 768, 3072, 12, 16), words, vocab=256_000, pad_id=0))


def siglip_so400m() -> Experiment:
    """SigLIP SO400M/14 of 384 pixels, the last 6 of which are in no patch: the shape of Alabdulmohsin et al. (arXiv
    2305.13035)."""
    seen = changed(vit(27, 1152, 4304, 16, 14), {"patches.height": 384, "patches.width": 384, "patches.cut": True})
    words = dict(layers=27, dim=1152, hidden=4304, heads=16)
    return replace(siglip_b16(), model=siglip(seen, words), layout=fully_sharded(128, 1))


def quickstart() -> Experiment:
    """Emoji and their names in 28 languages, each picture beside its name: two towers of four layers from scratch.

        scripts.prepare_data emoji_names
        scripts.train clip.quickstart --workdir runs/clip

    A batch is 128 pictures and names. Those that share a name, or a picture in two languages, count as strangers of each other.
    """
    e = emoji()
    size = {"patches.height": 64, "patches.width": 64, "dropout": 0.1}
    model = clip(changed(vit(4, 256, 1024, 4, 8), size), 4, 256, 4, 128)
    words = {"vocab": 4096, "positions.rows": 48, "dropout": 0.1, "pooling.end_id": 2}  # data/multimodal/vocabulary.py
    model = changed(model, {f"text.{path}": value for path, value in words.items()})
    return replace(
        e,
        model=model,
        data=changed(e.data, {"packing": Packing(), "batch_size": 128}),
        eval=HeldOut(split="test", batch_size=128),
    )


def siglip_quickstart() -> Experiment:
    """The quickstart with SigLIP's towers and loss."""
    e = quickstart()
    seen = changed(vit(4, 256, 1024, 4, 8), {"patches.height": 64, "patches.width": 64, "dropout": 0.1})
    words = dict(layers=4, dim=256, hidden=1024, heads=4)
    model = siglip(seen, words, vocab=4096, pad_id=0)
    return replace(e, model=changed(model, {"text.positions.rows": 48, "text.dropout": 0.1}))
