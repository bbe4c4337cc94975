"""DLRM's experiments: MLPerf's recommendation engine, and a small one on made-up interactions.

Deep learning recommendation model, arXiv 1906.00091; DCN V2, arXiv 2008.13535. models/dlrm/README.md says which numbers are the
papers'.
"""

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdaGrad, AdamW, ByComponent, Constant, Cosine, OfComponent
from data.clicks.config import ClickData
from data.config import HeldOut
from models.dlrm.config import DlrmConfig, Table
from models.dlrm.layouts import data_parallel, mixed
from models.execution import Execution
from models.parts.nested import changed

# Of Criteo's terabyte of clicks, with ids modulo 40,000,000, and hotness of its multi-hot form (MLPerf Training 3.0 to 6.0).
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63),
    *(40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14),
    *(40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)

# Single precision and dense updates, as a plain PyTorch has them.
_BENCH = {"optimizer": AdamW(schedule=Constant(value=1e-3), weight_decay=0.0), "train.eval_every": 0}


def dcnv2() -> Experiment:
    """MLPerf's dlrm_dcnv2: 26 tables of 204,184,588 rows, 13 dense numbers, three cross layers of rank 512.

    26,135,627,264 parameters of tables and 16,044,545 of the network (MLPerf's sizes, from memory). Batches of 65,536 and AdaGrad
    at 0.004 are its reference's, for one pass of 4,195,197,692 examples: 64,014 steps. Tables have one sum of squares for each
    row here, where the reference has one for each number: 0.8 GB beside 104.5 GB of tables, instead of as much again. Data are
    random: Criteo's are read from one's own copy (docs/DATA.md).
    """
    rate = Constant(value=0.004)
    return Experiment(
        # bottom 171,392 = 14 * 512 + 513 * 256 + 257 * 128; cross 10,627,200 = 3 * (2 * 3456 * 512 + 3456), 3456 = 27 * 128;
        # top 5,245,953 = 3457 * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
        model=DlrmConfig(tables=tuple(Table(rows=n, hotness=h) for n, h in zip(ROWS, HOTNESS, strict=True)), bins=(1, 4, 1)),
        layout=mixed(32, 2),
        data=ClickData(batch_size=65_536, hotness=HOTNESS, dense=13),
        optimizer=ByComponent(
            others=AdaGrad(schedule=rate), components=(OfComponent(path="tables", rule=AdaGrad(schedule=rate, by_row=True)),)
        ),
        train=Train(steps=64_014, log_every=100, checkpoint=Checkpointing(every=6_400, keep=2)),
        execution=Execution(unroll=0),
    )


def quickstart() -> Experiment:
    """A click's probability from a user, an item, an hour and a number, learned in five passes over made-up interactions."""
    return Experiment(
        model=DlrmConfig(
            tables=(Table(rows=2_001), Table(rows=1_001), Table(rows=25)),
            dense_features=1,
            embedding_dim=16,
            bottom=(32, 16),
            cross_layers=2,
            cross_rank=16,
            top=(64, 32, 1),
            small=100,
            large=2_000,
        ),
        layout=data_parallel(1, 1),
        data=ClickData(cache="latent_clicks", batch_size=2_048, hotness=(1, 1, 1), dense=1),
        # Row-wise AdaGrad at .05 for the tables has an AUC of .781 after half a million rows; this has .847 after 4.5 million.
        optimizer=AdamW(schedule=Cosine(peak=1e-2, steps=2_200, warmup=100, floor=0.01), weight_decay=0.0),
        train=Train(steps=2_200, log_every=50, checkpoint=Checkpointing(every=1_100, keep=2), eval_every=1_100),
        eval=HeldOut(batch_size=2_048),
        execution=Execution(unroll=0),
    )


def bench_3t() -> Experiment:
    """`dlrm.quickstart`'s network on random interactions: what speed on CPUs is compared on."""
    return changed(quickstart(), _BENCH | {"data.cache": "", "train.steps": 100})


def bench_26t() -> Experiment:
    """MLPerf's 26 tables of at most 10,000 rows, narrow, with all their columns of ids: speed where lookups are most of a step.

    5,401,473 parameters.
    """
    tables = tuple(Table(rows=min(n, 10_000), hotness=h) for n, h in zip(ROWS, HOTNESS, strict=True))
    sizes = {
        "embedding_dim": 32,
        "bottom": (128, 64, 32),
        "cross_layers": 3,
        "cross_rank": 64,
        "top": (256, 128, 1),
        "large": 2**30,
    }
    e = dcnv2()
    e = changed(e, {f"model.{name}": value for name, value in sizes.items()} | {"model.tables": tables, "model.bins": (1, 1, 1)})
    return changed(e, _BENCH | {"layout": data_parallel(1, 1), "data.batch_size": 1_024, "train.steps": 100})
