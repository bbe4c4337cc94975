"""The Conformer's experiments, as BigSSL used it.

Conformer (arXiv 2005.08100) has L; Pushing the Limits of Semi-Supervised Learning (arXiv 2010.10504) XL and XXL; BigSSL (arXiv
2109.13226) G; w2v-BERT (arXiv 2108.06209) its two sizes. The scaled models have no relative positions ("we removed ... relative
positional embedding", 2010.10504), kernels of 5, and are pre-trained on log-mel frames. The papers' unlabelled sound is not
public: pre-training reads random frames here, except in `small_unlabelled`. What the papers do not say is ours: layer norm
instead of batch norm inside the convolution of all but L, so that pipelines and microbatches change nothing; 32 channels of the
front.
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, Finetuning, Train
from configs.optimizers import Adafactor, AdamW, Cosine, InverseSqrt, Linear
from data.config import Decode, HeldOut
from data.speech.config import SpanMasks, SpecAugment, SpeechData
from models.conformer.config import (
    BatchNorm,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    Ctc,
    Quantizer,
    Transducer,
    TransformerLayer,
    W2vBert,
    Wav2Vec,
    Waveform,
)
from models.execution import Execution
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fsdp_within_data, fully_sharded

MASKS = SpanMasks(probability=0.065, span=10, stride=4)


def conformer(layers: int, dim: int, heads: int, kernel: int = 5, **fields: Any) -> ConformerConfig:
    """Returns a published size: four times the width inside feed-forward layers."""
    settings: dict[str, Any] = {"layer": ConformerLayer(kernel=kernel)} | fields
    return ConformerConfig(layers=layers, model_dim=dim, hidden_dim=4 * dim, heads=heads, **settings)


def labelled(model: ConformerConfig, layout: Layout, batch: int, **execution: Any) -> Experiment:
    """LibriSpeech by a transducer, from scratch: Adam as of the Transformer, peak .05 / sqrt(d) (2005.08100, section 3.2)."""
    return Experiment(
        model=model,
        layout=layout,
        data=SpeechData(
            batch_size=batch,
            seconds=24.0,
            front="kaldi",
            targets_length=256,
            augment=SpecAugment(bands=2, stretches=10, stretch_share=0.05),
        ),
        optimizer=AdamW(
            schedule=InverseSqrt(scale=0.05 / model.model_dim**0.5 * 10_000**0.5, flat=10_000, warmup=10_000),
            b2=0.98,
            weight_decay=1e-6,
        ),
        train=Train(steps=200_000, clip_norm=1.0, checkpoint=Checkpointing(every=5000, keep=5), log_every=100),
        eval=Decode(beams=1, max_length=256, batch_size=64),
        execution=Execution(dtype="bfloat16", **execution),
    )


def pretraining(model: ConformerConfig, layout: Layout, batch: int, **execution: Any) -> Experiment:
    """Unlabelled sound: Adafactor, transformer schedule, peak 2e-3 after 25,000 steps, gradients clipped to 20 (2010.10504)."""
    return Experiment(
        model=model,
        layout=layout,
        data=SpeechData(batch_size=batch, seconds=16.0, front="kaldi", masks=MASKS),
        optimizer=Adafactor(schedule=InverseSqrt(scale=2e-3 * 25_000**0.5, flat=25_000, warmup=25_000)),
        train=Train(steps=400_000, clip_norm=20.0, checkpoint=Checkpointing(every=5000, keep=5), log_every=100),
        eval=HeldOut(batch_size=batch),
        execution=Execution(dtype="bfloat16", **execution),
    )


def large() -> Experiment:
    """Conformer L, a transducer of 1,024 word pieces (2005.08100, table 1: 118.8 M with its LSTM of 640; ours 113 M, without the
    language model's share)."""
    layer = ConformerLayer(kernel=32, positions="relative", norm=BatchNorm(), bias=True)
    model = conformer(17, 512, 8, layer=layer, objective=Transducer(vocab=1024))
    return labelled(model, data_parallel(64, 1), 2048)


def xl() -> Experiment:
    """Conformer XL, 0.6 B (2010.10504, table 1), pre-trained by wav2vec 2.0's loss with linear targets."""
    return pretraining(conformer(24, 1024, 8, objective=Wav2Vec()), fully_sharded(64, 1), 2048)


def xxl() -> Experiment:
    """Conformer XXL, 1.0 B (2010.10504, table 1), pre-trained as XL."""
    return pretraining(conformer(42, 1024, 8, objective=Wav2Vec()), fully_sharded(128, 1), 2048, remat="full")


def g() -> Experiment:
    """Conformer G, 8.0 B (BigSSL): 36 blocks of 3,072, pre-trained as XL. BENCHMARKS.md has plans of it in pipeline
    stages, as BigSSL's was, and in 2D."""
    return pretraining(conformer(36, 3072, 16, objective=Wav2Vec()), fsdp_within_data(8, 64), 2048, remat="full")


def w2v_bert_xl() -> Experiment:
    """w2v-BERT XL, 0.6 B: 12 contrastive and 12 masked blocks, a codebook of 1,024 vectors of 1,024 (section 3)."""
    return pretraining(_w2v_bert(12, 12), fully_sharded(64, 1), 2048)


def w2v_bert_xxl() -> Experiment:
    """w2v-BERT XXL, 1.0 B: 12 contrastive and 30 masked blocks."""
    return pretraining(_w2v_bert(12, 30), fully_sharded(128, 1), 2048, remat="full")


def wav2vec2_base() -> Experiment:
    """wav2vec 2.0 Base (arXiv 2006.11477, section 4.2): a Transformer of 12 layers over a waveform, two codebooks of 320 entries;
    Adam with a peak of 5e-4 after 8 % of 400,000 steps, then linearly to 0, batches of 1.6 h. Its released relatives are read
    and written as Hugging Face folders (models/conformer/README.md)."""
    model = conformer(
        12,
        768,
        12,
        layer=TransformerLayer(order="post"),
        positions=ConvolutionalPositions(),
        front=Waveform(channels=512, norm="group", bias=False),
        objective=Wav2Vec(quantizer=Quantizer(codebooks=2)),
    )
    base = pretraining(model, fully_sharded(64, 1), 384)
    return replace(
        base,
        data=SpeechData(batch_size=384, seconds=15.6, front="waveform", masks=replace(MASKS, stride=320)),
        optimizer=AdamW(schedule=Linear(peak=5e-4, steps=400_000, warmup=32_000), b2=0.98, eps=1e-6, weight_decay=0.01),
    )


def _w2v_bert(contrastive: int, masked: int) -> ConformerConfig:
    objective = W2vBert(contrastive_layers=contrastive, quantizer=Quantizer(codes=1024), code_dim=1024)
    return conformer(masked, 1024, 8, objective=objective)


def small_czech() -> Experiment:
    """Writes down the Czech game speech by CTC with a small Conformer, from scratch or from `small_unlabelled`'s weights.

        scripts.train conformer.small_czech --workdir runs/czech_ctc --prepare
        scripts.train conformer.small_czech --workdir runs/czech_pre --train.finetune.init-from runs/heard

    Not from a paper: 1.2 h are far too little for a good recogniser, and what there is to see is whether pre-training helps.
    """
    return Experiment(
        model=conformer(8, 144, 4, 15, objective=Ctc(vocab=48), utterances=4),
        layout=data_parallel(1, 1),
        data=SpeechData(
            cache="fillets",
            batch_size=8,
            seconds=16.0,
            slots=4,
            front="kaldi",
            targets_length=512,
            augment=SpecAugment(bands=2, stretches=4),
        ),
        optimizer=AdamW(schedule=Cosine(peak=1e-3, steps=1500, warmup=150), b2=0.98, weight_decay=0.01),
        train=Train(
            steps=1500, clip_norm=5.0, checkpoint=Checkpointing(every=500, keep=1), finetune=Finetuning(fresh=("head", "hidden"))
        ),
        eval=Decode(split="test", beams=1, max_length=256, batch_size=16),
    )


def small_taught() -> Experiment:
    """Learns as `small_czech` does from a quarter of its texts, and from what Whisper base writes of the other utterances: noisy
    student training (2010.10504, section 3), with SpecAugment as the noise.

        scripts.train conformer.small_taught --workdir runs/taught --prepare
        scripts.train conformer.small_czech --workdir runs/few --prepare --data.cache fillets_few    # without a teacher
    """
    base = small_czech()
    return replace(base, data=replace(base.data, cache="fillets_taught"))


def small_unlabelled() -> Experiment:
    """Pre-trains the small Conformer on 1.4 h of game speech and telephone prompts without texts, by wav2vec 2.0's loss."""
    base = small_czech()
    return replace(
        base,
        model=conformer(8, 144, 4, 15, utterances=4, objective=Wav2Vec(code_dim=64, negatives=50)),
        data=SpeechData(cache="unlabelled", batch_size=8, seconds=16.0, slots=4, front="kaldi", masks=MASKS),
        train=Train(steps=1500, clip_norm=5.0, checkpoint=Checkpointing(every=500, keep=1)),
        eval=HeldOut(split="test", batch_size=16),
    )
