"""ViT and V-MoE: published sizes to the parameter, what each variant computes, and released files."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file, save_file

from configs import registry
from data.images.config import ImageData
from models.errors import UserError
from models.execution import Execution
from models.families import family_of
from models.parts import nested
from models.parts.attention.config import GroupedQuery, QkNorm, Rotary, Sinusoidal
from models.parts.losses import per
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, MoeLosses, TopK
from models.parts.transformer_config import Dense
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import describe, to_params
from models.vit.config import Classifier, MapPooling, MeanPooling, Patches, VitConfig
from models.vit.model import Vit, label_loss, patches, resized, sinusoids
from tests.helpers.contexts import EVALUATION, training
from tests.helpers.models import compiled
from trainers.hlo import tables
from trainers.plan import abstract_model
from trainers.weights import huggingface, load_any, source

# Parameters without the head, and with it: "token" heads have 1,000 classes, "map" ones 29,593, mixtures 21,843.
SIZES = {
    "vit.b16": (85_798_656, 86_567_656),
    "vit.l16": (303_301_632, 304_326_632),
    "vit.h14": (630_764_800, 632_045_800),
    "vit.giant_14": (1_011_199_616, 1_078_144_921),
    "vit.gigantic_14": (1_842_772_352, 1_930_404_761),
    "vit.e14": (3_805_417_728, 3_926_402_969),
    "vit.vit_22b": (21_750_546_432, 22_385_447_833),
    "vit.moe_b16_8e": (284_177_664, 300_974_931),
    "vit.moe_b16_32e": (964_318_464, 981_115_731),
    "vit.moe_l16_32e": (3_426_161_664, 3_448_550_739),
    "vit.moe_h14_32e": (7_135_765_760, 7_163_746_643),
    "vit.moe_15b": (14_663_375_232, 14_694_152_019),
}
TINY = VitConfig(
    layers=2,
    model_dim=16,
    attention=GroupedQuery(heads=2, head_dim=8, biases="qkvo"),
    feed_forward=Dense(hidden_dim=24, activation="gelu_tanh", bias=True),
    patches=Patches(height=12, width=16, size=4, channels=2),
    head=Classifier(classes=5),
)
WHERE = Component(ONE_DEVICE, execution=Execution(dtype="float64"))


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes_are_exact(name):
    """Body and head are counted apart, since publications count either: g/14, G/14 and V-MoE the body, e/14 both."""
    infos = list(describe(abstract_model(registry.load(name))))
    whole = sum(info.size for info in infos)
    assert (whole - sum(info.size for info in infos if info.scope.path.startswith("head")), whole) == SIZES[name]


def test_22b_counts_the_matrices_of_its_layers():
    """21,743 M are four matrices of attention and two of the feed-forward layer, 48 times; the planner's JSON says so."""
    e = registry.load("vit.vit_22b")
    layers = [i for i in describe(abstract_model(e)) if i.name.startswith("encoder.") and i.is_matrix]
    matrices = [i for i in layers if not i.name.endswith("_bias")]
    assert sum(i.size for i in matrices) == 21_743_271_936
    assert "22B the layers' matrices alone (21,743,271,936 here" in tables.describe(e)["convention"]


def model_of(**fields) -> Vit:
    """A tiny model, none of whose parameters is zero."""
    return _made(nested.changed(TINY, fields))


@functools.cache
def _made(c: VitConfig) -> Vit:
    leaves, tree = jax.tree.flatten(jax.device_get(jax.jit(lambda key: Vit(c, key, WHERE))(jax.random.key(0))))
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [jnp.asarray(x + rng.normal(size=x.shape, scale=0.2), jnp.float64) for x in leaves])


def batch(rows: int = 3, c: VitConfig = TINY) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    share = rng.uniform(0.5, 1, rows)
    return {
        "images": rng.normal(size=(rows, *c.picture)),
        "labels": rng.integers(0, c.head.classes, (rows, 2)).astype(np.int32),
        "label_weights": np.stack([share, 1 - share], 1),
    }


def test_patches_are_taken_row_by_row():
    """Patch (1, 2) of a picture of 3 x 4 patches is the seventh, its pixels by row, column and channel."""
    images = np.random.default_rng(0).normal(size=(2, 12, 16, 3))
    result = patches(jnp.asarray(images), 4, WHERE)
    assert result.shape == (2, 12, 48)
    assert_allclose(result[:, 6], images[:, 4:8, 8:12].reshape(2, -1))


VARIANTS = {
    "token": {},
    "free_token": {"pooling.positioned": False},
    "mean_sinusoidal": {"pooling": MeanPooling(), "positions": Sinusoidal()},
    "map_rotary": {"pooling": MapPooling(), "positions": Rotary()},
    "22b": {
        "pooling": MapPooling(),
        "norm.order": "parallel",
        "norm.bias": False,
        "attention.qk_norm": QkNorm(),
        "attention.biases": "o",
    },
    "pooler": {"head.pooler": True},
}


@pytest.mark.integration
@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_a_picture_is_alone_and_every_patch_counts(fields, float64):
    """A picture's logits don't depend on the others, depend on each of its patches, and on where these are."""
    model, arrays = model_of(**fields), batch()

    def logits(images: np.ndarray) -> np.ndarray:
        return np.asarray(compiled(model, {k: v[: len(images)] for k, v in arrays.items()} | {"images": images}))

    want = logits(arrays["images"])
    assert want.shape == (3, 5)
    assert_allclose(logits(arrays["images"][:1])[0], want[0], rtol=0, atol=1e-12)
    for row, column in np.ndindex(3, 4):
        changed = arrays["images"].copy()
        changed[0, 4 * row, 4 * column, 0] += 1.0
        result = logits(changed)
        assert np.abs(result[0] - want[0]).max() > 1e-6
        assert_array_equal(result[1:], want[1:])
    if model.c.positions is not None:
        flipped = logits(arrays["images"].reshape(3, 3, 4, 4, 4, 2)[:, ::-1].reshape(3, 12, 16, 2))
        assert np.abs(flipped - want).max() > 1e-6


def test_rotary_positions_are_relative_in_rows_and_columns(float64):
    """Attention of two patches depends on how many rows and columns they are apart: logits of a shifted pair are equal."""
    from models.parts.attention.rotary import rotate
    from models.vit.model import plane_rotation

    c = nested.changed(TINY, {"positions": Rotary(), "pooling": MeanPooling(), "patches.height": 20, "patches.width": 20})
    rng = np.random.default_rng(0)
    q, k = (jnp.broadcast_to(rng.normal(size=(1, 1, 1, 8)), (1, 25, 1, 8)) for _ in "qk")
    turned_q, turned_k = (rotate(x, plane_rotation(c), WHERE)[0, :, 0].reshape(5, 5, 8) for x in (q, k))

    def product(at, to):
        return float(turned_q[at] @ turned_k[to])

    assert product((0, 1), (2, 4)) == pytest.approx(product((2, 0), (4, 3)), abs=1e-6)
    assert product((0, 1), (2, 4)) != pytest.approx(product((0, 1), (4, 2)), abs=1e-3)


def test_sinusoids_are_of_columns_and_then_of_rows():
    """Half of a vector says the column and half the row, each by sines and then cosines at rates from 1 to 1/10,000."""
    table = sinusoids(3, 4, 16).reshape(3, 4, 16)
    rates = [1, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3), 1e-4]
    assert_allclose(table[2, 3], np.concatenate([f(np.multiply(at, rates)) for at in (3, 2) for f in (np.sin, np.cos)]))


def test_the_loss_is_that_of_two_weighted_labels(float64):
    """Softmax: weights times the cross-entropies of both labels. Sigmoid: all classes against the weighted labels. A row without
    weights counts nowhere."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 5)), np.array([[1, 2], [0, 0], [3, 4], [2, 1]])
    weights = np.array([[0.75, 0.25], [1, 0], [0.4, 0.6], [0, 0]])
    soft = np.zeros((4, 5))
    for row, side in np.ndindex(4, 2):
        soft[row, labels[row, side]] += weights[row, side]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    wanted = {"softmax": -(soft * log_p).sum() / 3, "sigmoid": (np.log1p(np.exp(logits)) - soft * logits)[:3].sum() / 3}
    for kind, want in wanted.items():
        c = nested.changed(TINY, {"head.loss": kind})
        loss = label_loss(c, jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights), jnp.asarray(3))
        assert_allclose(loss.value, want, rtol=1e-12)
        hits = logits.argmax(1)[:3] == [1, 0, 4]
        assert_allclose(per(loss.metrics["accuracy"].sum, loss.metrics["accuracy"].over), hits.mean())


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["mixture", pytest.param("dense", marks=pytest.mark.slow)])
def test_rows_that_fill_a_batch_up_change_nothing(float64, kind):
    """Two pictures without labels beside three with: the same loss and gradients, of a mixture too."""
    moe = MoeConfig(
        experts=ExpertsConfig(count=4),
        router=TopK(choices=2),
        group_size=13,
        capacity=Capacity(factor=0.0),
        losses=MoeLosses(importance_weight=0.1),
    )
    model, arrays = model_of(**({"moe": moe} if kind == "mixture" else {})), batch(5)
    arrays["label_weights"][3:] = 0
    made = jax.jit(jax.value_and_grad(lambda model, arrays: model.loss(arrays, training(0)).value))
    whole, part = made(model, arrays), made(model, {k: v[:3] for k, v in arrays.items()})
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-10), whole, part)


@pytest.mark.integration
def test_inference_capacity_is_the_evaluation_factor(float64):
    """With a factor below one, tokens are dropped in evaluation: at batch priority those of small gates, otherwise late ones."""

    def dropped(**fields) -> float:
        capacity, losses = Capacity(**fields), MoeLosses(balance_weight=0.0)
        moe = MoeConfig(experts=ExpertsConfig(count=4), router=TopK(choices=1), group_size=39, losses=losses, capacity=capacity)
        model = model_of(moe=moe)
        metrics = jax.jit(lambda model, arrays: model.loss(arrays, EVALUATION).metrics)(model, batch())
        return float(metrics["moe/dropped"].value)

    assert dropped(eval_factor=0.0) == 0
    assert dropped(eval_factor=0.4) > 0.5
    assert dropped(eval_factor=0.4, batch_priority=True) > 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patches.height": 10}, "height=10: patches of 4 pixels do not divide it; nearest are 8 or 12"),
        ({"positions": Rotary()}, "pooling.positioned=True: positions=Rotary have no table; nearest is False"),
        ({"norm.order": "post"}, "order='post': .* nearest is 'pre'"),
        (
            {"pooling.positioned": False, "positions": Sinusoidal(), "model_dim": 18},
            "model_dim=18: rows and columns need a multiple of 4",
        ),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        nested.changed(TINY, fields)


# --- released files ----------------------------------------------------------------------------------------------


def arrays_of(c: VitConfig, seed: int = 0) -> source.Arrays:
    """Random parameters of a model."""
    rng = np.random.default_rng(seed)
    model = jax.eval_shape(lambda: Vit(c, jax.random.key(0), WHERE))
    leaves, tree = jax.tree.flatten(to_params(model))
    assert len(leaves) == len({info.name for info in describe(model)})
    drawn = [rng.normal(size=x.shape).astype(np.float32) for x in leaves]
    return source.Arrays(c, jax.tree.unflatten(tree, drawn))


HF = nested.changed(TINY, {"feed_forward.activation": "gelu", "norm.eps": 1e-12})


def test_a_folder_is_read_as_it_was_written_by_old_names_and_new(tmp_path):
    """Our parameters come back bit by bit, from the names of released files and from those of version 5 of `transformers`."""
    ours = arrays_of(HF)
    huggingface.write_folder(ours, tmp_path / "old")
    names = load_file(tmp_path / "old/model.safetensors")
    assert names["vit.embeddings.patch_embeddings.projection.weight"].shape == (16, 2, 4, 4)
    long = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    (tmp_path / "new").mkdir()
    renamed = {}
    for name, tensor in names.items():
        new = name.replace("vit.encoder.layer.", "vit.layers.").replace("attention.output.dense", "attention.o_proj")
        new = re.sub(r"attention\.attention\.(\w+)", lambda m: f"attention.{long[m[1]]}", new)
        new = new.replace("intermediate.dense", "mlp.fc1").replace(".output.dense", ".mlp.fc2")
        renamed[new] = tensor
    assert len(renamed.keys() - names.keys()) == 2 * 16
    save_file(renamed, tmp_path / "new/model.safetensors")
    (tmp_path / "new/config.json").write_text((tmp_path / "old/config.json").read_text())
    for folder in ("old", "new"):
        read = huggingface.HuggingFace(tmp_path / folder)
        assert read.config == HF
        for name, shape in ours.shapes.items():
            assert read.shapes[name] == shape
            assert_array_equal(read.read(name), ours.read(name))


def test_patches_of_a_folder_are_convolutions(tmp_path):
    """The stored filter, applied to a patch by channel, row and column, is our product."""
    ours = arrays_of(HF)
    huggingface.write_folder(ours, tmp_path / "folder")
    filters = load_file(tmp_path / "folder/model.safetensors")["vit.embeddings.patch_embeddings.projection.weight"]
    images = np.random.default_rng(0).normal(size=(1, 12, 16, 2)).astype(np.float32)
    patch = images[0, 4:8, 8:12]
    want = np.einsum("rcx,mxrc->m", patch, filters)
    assert_allclose(patches(jnp.asarray(images), 4, WHERE)[0, 6] @ ours.read("patches"), want, rtol=1e-4, atol=1e-4)


def augreg(c: VitConfig, ours: source.Arrays) -> dict[str, np.ndarray]:
    """The arrays of AugReg's files, made from ours by their documented names."""

    def layer(name: str, i: int) -> np.ndarray:
        return ours.read(f"encoder.dense.{name}")[i]

    tensors = {
        "cls": ours.read("class_token")[None, None],
        "embedding/kernel": ours.read("patches").reshape(c.patches.size, c.patches.size, c.patches.channels, -1),
        "embedding/bias": ours.read("patch_bias"),
        "Transformer/posembed_input/pos_embedding": ours.read("position_table")[None],
        "Transformer/encoder_norm/scale": ours.read("final_norm.scale"),
        "Transformer/encoder_norm/bias": ours.read("final_norm.bias"),
        "head/kernel": ours.read("head.weight"),
        "head/bias": ours.read("head.bias"),
    }
    theirs = {"q": "query", "k": "key", "v": "value", "o": "out"}
    for i in range(c.layers):
        at = f"Transformer/encoderblock_{i}"
        for short, long in theirs.items():
            inside = f"{at}/MultiHeadDotProductAttention_1/{long}"
            tensors[f"{inside}/kernel"] = layer(f"attention.{short}", i)
            tensors[f"{inside}/bias"] = layer(f"attention.{short}_bias", i)
        for ours_name, number in (("attention_norm", 0), ("ffn_norm", 2)):
            for part in ("scale", "bias"):
                tensors[f"{at}/LayerNorm_{number}/{part}"] = layer(f"{ours_name}.{part}", i)
        for ours_name, number in (("wi", 0), ("wo", 1)):
            tensors[f"{at}/MlpBlock_3/Dense_{number}/kernel"] = layer(f"ffn.{ours_name}", i)
            tensors[f"{at}/MlpBlock_3/Dense_{number}/bias"] = layer(f"ffn.{ours_name}_bias", i)
    return tensors


SQUARE = nested.changed(TINY, {"patches.width": 12})


def savez(folder: Path, arrays: dict[str, Any]) -> None:
    """Writes vit.npz."""
    np.savez(folder / "vit.npz", **arrays)


def test_an_npz_file_is_read_by_its_shapes_alone(tmp_path):
    """All sizes come from the arrays; every parameter comes back."""
    ours = arrays_of(SQUARE)
    savez(tmp_path, augreg(SQUARE, ours))
    read = load_any.open_weights(tmp_path / "vit.npz")
    assert read.config == SQUARE and dict(read.shapes) == ours.shapes and read.stored == "float32"
    for name in ours.shapes:
        assert_array_equal(read.read(name, ()), ours.read(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("Transformer/encoderblock_1/LayerNorm_2/bias"), "encoderblock_1/LayerNorm_2/bias"),
        (lambda a: a.pop("embedding/kernel"), "no ViT: embedding/kernel is missing"),
        (lambda a: a.update(extra=np.zeros(3)), "extra"),
        (lambda a: a.update(cls=np.array([[[1, 2]]])), "cls.npy holds int64"),
        (lambda a: a.update(cls=np.array([{}])), "cls.npy holds object"),
    ],
    ids=["missing", "no_vit", "superfluous", "integers", "pickle"],
)
def test_an_npz_file_that_is_no_vit_is_refused_in_one_line(tmp_path, change, message):
    arrays = augreg(SQUARE, arrays_of(SQUARE))
    change(arrays)
    savez(tmp_path, arrays)
    with pytest.raises(UserError, match=message) as error:
        load_any.open_weights(tmp_path / "vit.npz")
    assert "\n" not in str(error.value)


def test_a_damaged_npz_file_is_refused(tmp_path):
    savez(tmp_path, augreg(SQUARE, arrays_of(SQUARE)))
    content = (tmp_path / "vit.npz").read_bytes()
    (tmp_path / "vit.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"vit.npz is damaged: File is not a zip file"):
        load_any.open_weights(tmp_path / "vit.npz")


def test_a_table_of_positions_is_interpolated():
    """A table that is linear in row and column stays so inside; the class token's place is kept."""
    grid = np.moveaxis(np.mgrid[:4, :4], 0, -1).reshape(16, 2).astype(np.float32)
    table = np.concatenate([[[7, 8]], grid])
    larger = resized(table, (4, 4), (8, 8), 1)
    assert_array_equal(larger[0], [7, 8])
    inside = larger[1:].reshape(8, 8, 2)[1:-1, 1:-1]
    assert_allclose(inside, (np.moveaxis(np.mgrid[1:7, 1:7], 0, -1) + 0.5) / 2 - 0.5, atol=1e-6)


def test_weights_of_another_resolution_get_a_table_of_its_own():
    """Fine-tuning at twice the height starts from interpolated positions, all else as it is."""
    ours = arrays_of(SQUARE)
    larger = nested.changed(SQUARE, {"patches.height": 24, "patches.width": 24})
    shapes = {i.name: i.shape for i in describe(jax.eval_shape(lambda: Vit(larger, jax.random.key(0), WHERE)))}
    weights = source.Resized(ours, larger)
    source.check(shapes, weights)
    assert set(source.fitting(larger, shapes, weights)) == set(shapes)
    assert weights.read("position_table").shape == (37, 16)
    assert_array_equal(weights.read("patches"), ours.read("patches"))


def test_what_hugging_face_has_no_class_for_is_refused(tmp_path):
    c = nested.changed(HF, {"pooling": MeanPooling()})
    with pytest.raises(UserError, match=r"pooling=MeanPooling\(\)"):
        huggingface.write_folder(arrays_of(c), tmp_path / "folder")


def test_config_of_hugging_face_says_what_it_cannot_be(tmp_path):
    huggingface.write_folder(arrays_of(HF), tmp_path / "folder")
    file = tmp_path / "folder/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pooler_act": "relu"}))
    with pytest.raises(UserError, match='pooler_act="relu" is not supported'):
        huggingface.HuggingFace(tmp_path / "folder")


def test_the_family_reads_pictures_of_the_models_size():
    e = load_any.foreign(nested.changed(HF, {"patches.height": 32, "patches.width": 48, "patches.channels": 3}))
    assert isinstance(e.data, ImageData)
    assert (e.data.height, e.data.width, e.data.eval_crop) == (32, 48, 0.0)
    assert family_of(HF).default_experiment(HF) == "vit.b16"
    assert to_params(abstract_model(e))["position_table"].shape == (97, 16)


@pytest.mark.parametrize("fields", [{}, {"pooling": MeanPooling(), "positions": Rotary()}], ids=["token", "mean"])
def test_attention_maps_are_shares(fields, float64):
    """The shares of all patches add up to one, less that of the class token, in each layer; they differ by picture."""
    model, arrays = model_of(**fields), batch()
    maps = np.asarray(jax.jit(lambda model: model.attention_maps(arrays))(model))
    assert maps.shape == (2, 3, 3, 4) and (maps > 0).all()
    total = maps.sum((2, 3))
    assert (total < 1).all() if model.class_token is not None else np.allclose(total, 1)
    assert np.abs(maps[:, 0] - maps[:, 1]).max() > 1e-3


def test_a_folder_names_the_classes_of_pictures(tmp_path, capsys):
    """scripts.classify on a Hugging Face folder: five of its id2label, the likeliest first."""
    from PIL import Image

    from scripts import classify

    c = nested.changed(HF, {"patches.height": 16, "patches.width": 16, "patches.channels": 3, "head.classes": 7})
    huggingface.write_folder(arrays_of(c), tmp_path / "folder")
    config = json.loads((tmp_path / "folder/config.json").read_text())
    names = ["ant", "bee", "cat", "cow", "dog", "eel", "fox"]
    (tmp_path / "folder/config.json").write_text(json.dumps(config | {"id2label": dict(enumerate(names))}))
    pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["classify", "--checkpoint", str(tmp_path / "folder"), str(tmp_path / "picture.png")])
        assert classify.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].endswith("picture.png") and {line.split()[1] for line in lines} <= set(names)
    shares = [float(line.split()[0]) for line in lines]
    assert shares == sorted(shares, reverse=True)
