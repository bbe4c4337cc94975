"""The side of `transformers`, in an environment of its own (`make parity`); knows nothing of the zoo's code.

theirs.py make TO                      a folder for each case, with inputs and the model's outputs in expected.safetensors
theirs.py run FOLDER...                the outputs of models that the zoo wrote, to outputs.safetensors beside them
theirs.py embed MODEL TO               the embeddings of some sentences
theirs.py encode FOLDER TEXT           ids of a text by the folder's tokenizer
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from cases import CASES, SENTENCES  # pyright: ignore[reportMissingImports]
from safetensors.numpy import load_file, save_file


def inputs(config, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Two rows of unequal length, with token types where the model has them."""
    mask = (np.arange(13) < np.array([[13], [9]])).astype(np.int32)
    found = {"tokens": rng.integers(0, config.vocab_size, mask.shape).astype(np.int32) * mask, "mask": mask}
    if types := getattr(config, "type_vocab_size", 0):
        found["types"] = np.sort(rng.integers(0, types, mask.shape).astype(np.int32)) * mask
    return found


def randomize(model, rng: np.random.Generator) -> None:
    """Weights of a size that makes every one of them matter; biases and norms too, which start as zeros and ones."""
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            draw = rng.normal(size=p.shape) / (p.shape[-1] ** 0.5 if p.ndim > 1 else 3)
            is_norm = p.ndim == 1 and name.endswith("weight")
            p.copy_(torch.from_numpy(draw + is_norm))


def outputs(model, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All that the model gives, and for a bare one also unit mean vectors."""
    batch = {k: torch.from_numpy(v).long() for k, v in given.items()}
    types = {"token_type_ids": batch["types"]} if "types" in batch else {}
    with torch.no_grad():
        out = model(input_ids=batch["tokens"], attention_mask=batch["mask"], **types)
    found = {k: v.numpy() for k, v in out.items() if isinstance(v, torch.Tensor)}
    found.pop("pooler_output", None)
    if type(model) is transformers.BertModel:
        found["embedding"] = unit(found["last_hidden_state"], given["mask"])
    return {k: np.ascontiguousarray(v) for k, v in found.items()}


def unit(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Unit vectors along the mean of the tokens'."""
    mean = np.sum(hidden * mask[..., None], 1) / np.sum(mask, 1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def load(folder: Path):
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    allowed = {"pooler.dense.weight", "pooler.dense.bias"} if architecture == "BertModel" else set()
    wrong = {k: v for k, v in report.items() if set(v) - allowed}
    assert not wrong, f"{folder}: {wrong}"
    return model.eval()


def make(to: Path) -> None:
    for name, case in CASES.items():
        rng = np.random.default_rng(list(name.encode()))
        model_class = getattr(transformers, case.architecture)
        model = model_class(model_class.config_class(**case.settings)).eval()
        randomize(model, rng)
        model.save_pretrained(to / name)
        (to / name / "generation_config.json").unlink(missing_ok=True)
        given = inputs(model.config, rng)
        save_file(given | outputs(model, given), to / name / "expected.safetensors")


def run(folder: Path) -> None:
    save_file(outputs(load(folder), load_file(folder / "inputs.safetensors")), folder / "outputs.safetensors")


def embed(folder: Path, to: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="np")
    ids, mask = batch["input_ids"].astype(np.int32), batch["attention_mask"].astype(np.int32)
    given = {"tokens": ids, "mask": mask, "types": batch["token_type_ids"].astype(np.int32)}
    save_file(given | {"embedding": outputs(load(folder), given)["embedding"]}, to)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["make", to]:
            make(Path(to))
        case ["run", *folders]:
            for folder in folders:
                run(Path(folder))
        case ["embed", folder, to]:
            embed(Path(folder), Path(to))
        case ["encode", folder, text]:
            print(json.dumps(transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]))
        case _:
            sys.exit(__doc__)
