"""The side of `transformers` of curves.py: its Trainer on given batches, in an environment of its own, without the zoo's code.

training.py START FOLDER    the losses of all steps, of the batches and by the settings in FOLDER

FOLDER has batches.safetensors, whose arrays are named STEP.ARGUMENT, settings.json, and adapter/ where an adapter of `peft` is
trained.
"""

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

Inputs = dict[str, torch.Tensor]


def batches(folder: Path) -> list[Inputs]:
    """Returns the arguments of the model in each step, whole numbers as PyTorch has them."""
    arrays = load_file(folder / "batches.safetensors")
    steps: list[Inputs] = [{} for _ in {name.partition(".")[0] for name in arrays}]
    for name, x in arrays.items():
        at, _, argument = name.partition(".")
        steps[int(at)][argument] = x if x.is_floating_point() else x.long()
    return steps


def model_of(start: Path, adapter: Path) -> Any:
    """Returns the folder's model in single precision, with the adapter, if there is one."""
    architecture = json.loads((start / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(start, dtype=torch.float32)
    if adapter.exists():
        from peft import PeftModel  # pyright: ignore[reportMissingImports]

        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model


def answers(model: Any, inputs: Inputs) -> torch.Tensor:
    """Returns the log-probability of each row's labels."""
    labels = inputs["labels"][:, 1:]
    logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
    each = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (each * (labels != -100)).sum(-1)


class Steps(transformers.Trainer):
    """A Trainer that keeps the loss of every step.

    Args:
      settings: `loss` is "own", the model's; "tokens", its sum over the batch a label; or "preferences": TRL's DPOTrainer with
        its default loss, "sigmoid", on rows that are chosen answers and then rejected ones, written out here.
    """

    def __init__(self, settings: dict[str, Any], **fields: Any):
        super().__init__(**fields)
        self.settings, self.losses, self.rates = settings, [], []
        self.reference = copy.deepcopy(self.model).eval() if settings["loss"] == "preferences" else None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        match self.settings["loss"]:
            case "preferences":
                with torch.no_grad():
                    reference = answers(self.reference, inputs)
                chosen, rejected = (answers(model, inputs) - reference).chunk(2)
                loss = -torch.nn.functional.logsigmoid(self.settings["beta"] * (chosen - rejected)).mean()
            case "tokens":
                loss = super().compute_loss(model, inputs) / (inputs["labels"] != -100).sum()
            case _:
                loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.losses.append(loss.item())
        return loss


def train(start: Path, folder: Path) -> list[float]:
    """Trains by AdamW, in the order of the batches."""
    settings, steps = json.loads((folder / "settings.json").read_text()), batches(folder)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = transformers.TrainingArguments(
            output_dir=scratch,
            max_steps=len(steps),
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            learning_rate=settings["rate"],
            lr_scheduler_type=settings["schedule"],
            warmup_steps=settings["warmup"],
            optim="adamw_torch",
            weight_decay=settings["decay"],
            adam_beta2=settings["b2"],
            max_grad_norm=settings["clip"],
            remove_unused_columns=False,
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        model = model_of(start, folder / "adapter")
        run = Steps(settings, model=model, args=arguments, train_dataset=steps, data_collator=lambda taken: taken[0])
        run.train()
    return run.losses


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with open(os.devnull, "w") as nothing:  # the Trainer prints its logs
        printed, sys.stdout = sys.stdout, nothing
        values = train(Path(sys.argv[1]), Path(sys.argv[2]))
        sys.stdout = printed
    print(json.dumps(values))
