"""HSTU's experiments: the paper's on MovieLens, MLPerf's recommendation engine of 2026, and small ones on made-up sequences.

Actions Speak Louder than Words, arXiv 2402.17152. models/hstu/README.md says which numbers are whose.
"""

import dataclasses

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdaGrad, AdamW, ByComponent, Constant, Cosine, Linear, OfComponent
from data.config import HeldOut
from data.sequences.config import SequenceData
from models.execution import Execution
from models.hstu.config import HstuConfig, Ranking
from models.hstu.layouts import data_parallel, mixed


def ml_1m() -> Experiment:
    """The paper's HSTU on MovieLens-1M (Table 4): two layers of one head of 50.

    227,758 parameters: 3,840 vectors of items, of which 133 are nobody's, 200 of positions, and 12,879 a layer. Rows of 200
    films, dropout 0.2, 128 negatives, temperature 0.05, Adam at 1e-3 without warm-up, 101 epochs of 6,040 users in batches of
    128: 4,767 steps (the public code's configs/ml-1m). A user's last film is the test, ranked among all that the user has not
    rated. Data are random: MovieLens' are read from one's own copy (docs/DATA.md), as `prepare_data films --from ml-1m --kind
    sequences` prepares them. NDCG@10 of 0.1720 and HR@10 of 0.3097 are the public code's (its README, printed).
    """
    # A layer: 50 * 4 * 50 + 51 * 50 + 200 + 129 = 12,879; all: 3,840 * 50 + 200 * 50 + 2 * 12,879 = 227,758.
    return Experiment(
        model=HstuConfig(items=3_707),
        layout=data_parallel(1, 1),
        data=SequenceData(batch_size=128, length=200),
        optimizer=AdamW(schedule=Constant(value=1e-3)),
        train=Train(steps=4_767, log_every=50, checkpoint=Checkpointing(every=1_589, keep=2)),
        execution=Execution(unroll=0),
    )


def ml_1m_large() -> Experiment:
    """The paper's HSTU-large on MovieLens-1M (Table 4): eight layers of two heads of 25; else `ml_1m`.

    305,032 parameters. NDCG@10 of 0.1893 and HR@10 of 0.3294 are the public code's (its README, printed).
    """
    e = ml_1m()  # 202,000 + 8 * 12,879
    return dataclasses.replace(e, model=HstuConfig(items=3_707, layers=8, heads=2, attention_dim=25, linear_dim=25))


def dlrmv4() -> Experiment:
    """MLPerf's dlrmv4 (Training 6.1): the probability of a positive action on an item, by its AUC.

    2,568,129,948 parameters, of which 2,560,098,304 are vectors of items (384 are nobody's), and 1,846,409 a layer.

    MLPerf fixes Adam with 0.95, 0.999 and 1e-8, row-wise AdaGrad of tables with the same rate, 1e-6 for batches of 8,192, after
    24,000 steps from 0, gradients clipped to 1, rows of 4,096, 2,290,835,423 samples, an evaluation of 2,058,204 after each
    thousandth of them from the 25th on, and the target 0.75 (mlperf_logging's closed_dlrmv4.yaml and rcps_dlrmv4.json, which
    takes 27 to 35 of these for its reference).
    Sizes are those of the reference's ranking model (generative-recommenders, dlrm_v3/configs.py): three layers of four heads of
    128, 512 elements, vectors of 256 elements of 10,000,000 hashed items. Its tables of users and of other circumstances, its
    networks around the tower and its vectors of times are left out, and each row is a user's interactions with a prediction at
    each, where the reference's is one candidate behind a history (models/hstu/README.md). Data are random.
    """
    # A layer: 512 * 2,048 + 2,048 + 1,536 * 512 + 8,192 + 129 + 1,024 + 8; beside them 256 * 512 + 4,096 * 512 + 2 * 512 of the
    # inputs and 513 * 513 of the head.
    rate = Linear(peak=1e-6, steps=279_643, warmup=24_000, floor=1.0)  # a line to itself: constant after the warm-up
    return Experiment(
        model=HstuConfig(
            items=10_000_000,
            length=4_096,
            objective=Ranking(hidden=512),
            layers=3,
            model_dim=512,
            embedding_dim=256,
            heads=4,
            attention_dim=128,
            linear_dim=128,
            dropout=0.1,
            form="dlrm_v3",
        ),
        layout=mixed(64, 1),
        data=SequenceData(batch_size=8_192, length=4_096, target="action", negatives=0),
        optimizer=ByComponent(
            others=AdamW(schedule=rate, b1=0.95, b2=0.999, eps=1e-8),
            components=(OfComponent(path="tables", rule=AdaGrad(schedule=rate, by_row=True)),),
        ),
        train=Train(
            steps=279_643,  # 2,290,835,423 / 8,192, rounded up
            clip_norm=1.0,
            log_every=100,
            checkpoint=Checkpointing(every=2_800, keep=2),
            eval_every=280,  # ceil(0.001 * 2,290,835,423 / 8,192)
            eval_from=7_000,
        ),
        eval=HeldOut(batch_size=8_192),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


def quickstart() -> Experiment:
    """The next item of a user, learned from made-up sequences in which items follow each other by a rule and by taste.

    NDCG@10 of the validation among all 200 items is 0.471 (measured, one seed), where the best that can be expected is 0.488,
    counts of which item comes behind which have 0.453, a matrix factorisation 0.193 and popularity 0.121: about two minutes of
    CPU.
    """
    return Experiment(
        model=HstuConfig(
            items=201, length=50, layers=2, model_dim=64, embedding_dim=64, heads=2, attention_dim=32, linear_dim=32, dropout=0.1
        ),
        layout=data_parallel(1, 1),
        data=SequenceData(cache="latent_sequences", batch_size=64, length=50, negatives=128),
        optimizer=AdamW(schedule=Cosine(peak=3e-3, steps=1_200, warmup=50, floor=0.01)),
        train=Train(steps=1_200, log_every=50, checkpoint=Checkpointing(every=600, keep=2), eval_every=600),
        eval=HeldOut(batch_size=256),
        execution=Execution(unroll=0),
    )


def clicks() -> Experiment:
    """The action on each item, learned from the same sequences as `quickstart`: a user is known by the history alone.

    The validation's AUC is 0.812 (measured, one seed), that of the probabilities which actions were drawn with 0.875, of a matrix
    factorisation, which knows users by their names, 0.805, and of popularity 0.734. With the paper's layer it was 0.812 after
    1,200 steps, and 0.800 after 600 of these (dropout 0.2).
    """
    e = quickstart().with_steps(800)
    return dataclasses.replace(
        e,
        model=dataclasses.replace(e.model, objective=Ranking(hidden=64), form="dlrm_v3"),
        data=SequenceData(cache="latent_sequences", batch_size=64, length=50, target="action", negatives=0),
    )
