"""ViT's and V-MoE's experiments.

An Image is Worth 16x16 Words (arXiv 2010.11929): B/16, L/16 and H/14, pre-trained on ImageNet's 1,000 classes here, as AugReg
was (arXiv 2106.10270), since JFT is not public. Scaling Vision Transformers (arXiv 2106.04560): g/14, G/14; e/14 is that of
PaLI (arXiv 2209.06794); they have a MAP head over the 29,593 classes of JFT-3B, whose pictures are random here. Scaling Vision
Transformers to 22 Billion Parameters (arXiv 2302.05442). V-MoE: Scaling Vision with Sparse Mixture of Experts (arXiv
2106.05974), pre-trained on ImageNet-21k, which TFDS does not have: random here. What a published number of parameters counts
differs: `scripts.show NAME --json` says what ours does.
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, HeldOut, Train
from configs.optimizers import Adafactor, AdamW, Constant, Cosine, InverseSqrt, Linear
from data.images.config import Augmentation, ImageData
from models.execution import Execution
from models.parts.attention.config import GroupedQuery, QkNorm, Sinusoidal
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, MoeLosses, Noise, TopK
from models.parts.nested import changed
from models.parts.transformer_config import Dense
from models.sharding.expert_layouts import expert_parallel, expert_parallel_2d
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fsdp_within_data, fully_sharded
from models.vit.config import Classifier, MapPooling, MeanPooling, Patches, VitConfig

JFT_CLASSES = 29_593
# Parallel layers, norms of queries and keys, and fewer biases (arXiv 2302.05442, section 2).
VIT_22B = {"norm.order": "parallel", "norm.bias": False, "attention.qk_norm": QkNorm(), "attention.biases": "o"}


def vit(layers: int, dim: int, hidden: int, heads: int, patch: int, **fields: Any) -> VitConfig:
    """A ViT by its sizes; what else the original has are the defaults."""
    return VitConfig(
        layers=layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=dim // heads, biases="qkvo"),
        feed_forward=Dense(hidden_dim=hidden, activation="gelu_tanh", bias=True),
        patches=Patches(size=patch),
        **fields,
    )


def experiment(model: VitConfig, layout: Layout, batch: int, steps: int, peak: float, **fields: Any) -> Experiment:
    """Pre-training on ImageNet-1k as AugReg's with medium augmentation: 300 epochs, Adam, a decay of weights, clipping to 1."""
    return Experiment(
        model=model,
        layout=layout,
        data=ImageData(
            cache="imagenet2012",
            batch_size=batch,
            augmentation=Augmentation(crop="resized", flip=True, layers=2, magnitude=10.0, mixup=0.2),
        ),
        optimizer=AdamW(schedule=Cosine(peak=peak, steps=steps, warmup=10_000), weight_decay=0.1),
        train=Train(steps=steps, clip_norm=1.0, checkpoint=Checkpointing(every=5000, keep=5), log_every=100),
        eval=HeldOut(split="validation", batch_size=batch),
        execution=Execution(dtype="bfloat16", **fields),
    )


def b16() -> Experiment:
    """ViT-B/16: 86,567,656 parameters with its head of 1,000 classes."""
    return experiment(vit(12, 768, 3072, 12, 16, dropout=0.1), data_parallel(16, 1), 4096, 93_000, 1e-3)


def l16() -> Experiment:
    """ViT-L/16: 304,326,632 parameters with its head of 1,000 classes."""
    return experiment(vit(24, 1024, 4096, 16, 16, dropout=0.1), fully_sharded(32, 1), 4096, 93_000, 1e-3)


def h14() -> Experiment:
    """ViT-H/14: 632,045,800 parameters with its head of 1,000 classes."""
    return experiment(vit(32, 1280, 5120, 16, 14, dropout=0.1), fully_sharded(64, 1), 4096, 93_000, 1e-3)


def _jft(model: VitConfig, layout: Layout, batch: int, steps: int, **fields: Any) -> Experiment:
    """Pre-training on JFT-3B with a MAP head (Scaling ViT, section 3): sigmoid loss, Adafactor, reciprocal square root."""
    model = changed(model, {"pooling": MapPooling(), "head.classes": JFT_CLASSES, "head.loss": "sigmoid", "head.bias": -10.0})
    e = experiment(model, layout, batch, steps, 8e-4, **fields)
    schedule = InverseSqrt(scale=8e-4 * 100, flat=10_000, warmup=10_000)
    return replace(e, data=ImageData(batch_size=batch), optimizer=Adafactor(schedule=schedule, parameter_scale=False))


def giant_14() -> Experiment:
    """ViT-g/14: 1,011,199,616 parameters in its body, 1,078,144,921 with MAP head and classes."""
    return _jft(vit(40, 1408, 6144, 16, 14), fully_sharded(128, 1), 16_384, 1_000_000)


def gigantic_14() -> Experiment:
    """ViT-G/14: 1,842,772,352 parameters in its body, 1,930,404,761 with MAP head and classes."""
    return _jft(vit(48, 1664, 8192, 16, 14), fully_sharded(128, 2), 16_384, 1_000_000)


def e14() -> Experiment:
    """ViT-e/14: 3,805,417,728 parameters in its body, 3,926,402,969 with MAP head and classes."""
    return _jft(vit(56, 1792, 15_360, 16, 14), fully_sharded(256, 1), 16_384, 1_000_000)


def vit_22b() -> Experiment:
    """ViT-22B: 21,743,271,936 parameters in its layers' matrices, which are what its name counts.

    Parallel layers, norms of queries and keys, biases where the paper has them (section 2); 65,536 pictures of 256 patches a
    step.
    """
    model = changed(vit(48, 6144, 24_576, 48, 14), VIT_22B)
    # Of 6144 rows one of 64 devices has 96, whole tiles of a TPU; one of 1024 would have 6, to be laid out anew at each use.
    e = _jft(model, fsdp_within_data(16, 64), 65_536, 177_000, remat="context")
    return replace(e, optimizer=replace(e.optimizer, schedule=InverseSqrt(scale=1e-3 * 100, flat=10_000, warmup=10_000)))


def _sparse(model: VitConfig, experts: int, layout: Layout, peak: float, **fields: Any) -> Experiment:
    """V-MoE's pre-training on ImageNet-21k (appendix B): 300 epochs of 4,096 pictures, Adam, a decay of 0.1, mixup 0.5."""
    moe = MoeConfig(
        experts=ExpertsConfig(count=experts),
        router=TopK(choices=2, noise=Noise(std=1.0, load_weight=0.005)),
        group_size=8 * model.length,
        capacity=Capacity(factor=2.1, eval_factor=2.1, multiple=4),
        losses=MoeLosses(balance_weight=0.0, importance_weight=0.005),
    )
    model = changed(model, {"moe": moe, "head.classes": 21_843})
    e = experiment(model, layout, 4096, 900_000, peak, **fields)
    return replace(
        e,
        data=replace(e.data, cache="", augmentation=Augmentation(crop="resized", flip=True, mixup=0.5)),
        optimizer=AdamW(schedule=Linear(peak=peak, steps=900_000, warmup=10_000, floor=1e-5 / peak), weight_decay=0.1),
    )


def moe_s32_8e() -> Experiment:
    """V-MoE-S/32, which is no ViT-S: 8 layers of 512, 8 experts in every second."""
    return _sparse(vit(8, 512, 2048, 8, 32), 8, expert_parallel(2, 8), 1e-3)


def moe_b16_8e() -> Experiment:
    """V-MoE-B/16, 8 experts in every second layer: 284,177,664 parameters without its head."""
    return _sparse(vit(12, 768, 3072, 12, 16), 8, expert_parallel(4, 8), 8e-4)


def moe_b16_32e() -> Experiment:
    """V-MoE-B/16, 32 experts in every second layer."""
    return _sparse(vit(12, 768, 3072, 12, 16), 32, expert_parallel_2d(1, 32), 8e-4)


def moe_l16_32e() -> Experiment:
    """V-MoE-L/16, 32 experts in every second layer: 3.4 billion parameters."""
    return _sparse(vit(24, 1024, 4096, 16, 16), 32, expert_parallel(2, 32), 4e-4)


def moe_h14_32e() -> Experiment:
    """V-MoE-H/14, 32 experts in every second layer: 7.2 billion parameters."""
    return _sparse(vit(32, 1280, 5120, 16, 14), 32, expert_parallel(4, 32), 3e-4)


def moe_15b() -> Experiment:
    """V-MoE-15B (section 3.3): 48 layers of 1408, 32 experts in every second, 14.7 billion parameters.

    The paper pre-trains it on JFT-300M; this one has the recipe of the others.
    """
    e = _sparse(vit(48, 1408, 6400, 16, 14), 32, expert_parallel(8, 32), 3e-4)
    return replace(e, execution=replace(e.execution, remat="dots"))


QUICKSTART = VitConfig(
    layers=6,
    model_dim=128,
    attention=GroupedQuery(heads=4, head_dim=32, biases="qkvo"),
    positions=Sinusoidal(),
    feed_forward=Dense(hidden_dim=256, activation="gelu", bias=True),
    pooling=MeanPooling(),
    patches=Patches(height=28, width=28, channels=1, size=7),
    head=Classifier(classes=10),
)


def quickstart() -> Experiment:
    """A first ViT: photographs of clothes in ten classes (Fashion-MNIST), 28 x 28 grey pixels in 16 patches.

    Large patches buy passes over the pictures: after as many steps 49 patches of 4 x 4 pixels are no better, in 2.5 times the
    time. What limits it is not how fast it learns but that it learns the pictures by heart, hence mixup and the decay.
    """
    return Experiment(
        model=QUICKSTART,
        layout=data_parallel(1, 1),
        data=ImageData(
            cache="fashion_mnist",
            batch_size=128,
            height=28,
            width=28,
            channels=1,
            mean=(0.286,),
            std=(0.353,),
            eval_crop=1.0,
            augmentation=Augmentation(flip=True, mixup=0.2),
        ),
        optimizer=AdamW(schedule=Cosine(peak=1e-3, steps=5800, warmup=300, floor=0.01), weight_decay=0.5),
        train=Train(steps=5800, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=1000, keep=2), eval_every=1000),
        eval=HeldOut(split="test", batch_size=200),
        execution=Execution(unroll=0),
    )


def moe_quickstart() -> Experiment:
    """The quickstart with 8 experts in every second layer, one of them for each patch: as many FLOPs a patch."""
    moe = MoeConfig(
        experts=ExpertsConfig(count=8),
        router=TopK(choices=1, noise=Noise(std=1.0, load_weight=0.005)),
        group_size=8 * QUICKSTART.length,
        capacity=Capacity(factor=1.05, eval_factor=1.05, multiple=4),
        losses=MoeLosses(balance_weight=0.0, importance_weight=0.005),
    )
    return replace(quickstart(), model=replace(QUICKSTART, moe=moe), layout=expert_parallel(1, 1))


def bench_s16() -> Experiment:
    """ViT-S/16 in single precision without dropout, on random pictures: what speed on CPUs is compared on."""
    return Experiment(
        model=changed(vit(12, 384, 1536, 6, 16), {"feed_forward.activation": "gelu"}),
        layout=data_parallel(1, 1),
        data=ImageData(batch_size=8),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=HeldOut(batch_size=8),
        execution=Execution(unroll=0),
    )
