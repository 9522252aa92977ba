"""Programs for `test_trainers.py`, which torchrun starts on several ranks.

    torchrun on_ranks.py NAME DATASET FOLDER

NAME selects a function below. In the dataset, the field `cls` of each sample is the number of the sample. Each rank
writes the numbers that it has read to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import shardtool
from shardtool.torch import MapDataset, StreamDataset, loader

SIZE, STOP = 4, 8  # samples per batch, and step of the checkpoint
warnings.simplefilter("ignore")
Found = dict[str, Any]


class Model(torch.nn.Module):  # type: ignore[misc]
    """A model that records the values of `cls` in its input, one list per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = [[]]

    def forward(self, cls: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
        """Record `cls`, float or int [batch], and return a loss."""
        self.seen[-1] += cls.tolist()
        return {"loss": (self.weight * cls).sum()}


def of_accelerate(dataset: Any, _: str) -> Found:
    """For each way to read with Accelerate, return the batches of two epochs, or the error message."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    found: Found = {}
    samples = dataset.decode().tuple("cls")
    for dispatch in (None, True, False):
        accelerator: Any = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
        ways = {
            "map": lambda: DataLoader(MapDataset(samples), SIZE, shuffle=True),
            "divided": lambda: DataLoader(StreamDataset(samples, SIZE), SIZE),
            "whole": lambda: DataLoader(StreamDataset(samples, SIZE, rank=0, world_size=1), SIZE),
            "workers": lambda: DataLoader(StreamDataset(samples, SIZE, rank=0, world_size=1), SIZE, num_workers=2),
        }
        for way, make in ways.items():
            batches = accelerator.prepare(make())  # type: ignore[no-untyped-call]
            try:
                found[f"{way} {dispatch}"] = [[n for (batch,) in batches for n in batch.tolist()] for _ in range(2)]
            except shardtool.InvalidRequest as error:
                found[f"{way} {dispatch}"] = str(error)
    found["own"] = [[n for (batch,) in loader(samples, SIZE) for n in batch.tolist()]]
    return found


def of_trainer(dataset: Any, folder: str) -> Found:
    """Return the samples of two epochs of the transformers Trainer, or the error message, for each kind of dataset."""
    from transformers import Trainer, TrainingArguments

    class Streamed(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> DataLoader[Any]:
            """Do not prepare the DataLoader with Accelerate, because the stream already divides samples among ranks."""
            return DataLoader(self.train_dataset, SIZE, collate_fn=self.data_collator)

    samples = dataset.decode().map(lambda sample: {"cls": torch.tensor(float(sample["cls"]))})
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=SIZE, num_train_epochs=2, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
    )  # fmt: skip
    found: Found = {}
    for name, kind, given in (
        ("map", Trainer, MapDataset(samples)),
        ("stream", Streamed, StreamDataset(samples, SIZE)),
        ("refused", Trainer, StreamDataset(samples, SIZE)),
    ):
        model = Model()
        try:
            kind(model, arguments, train_dataset=given).train()
            found[name] = [int(number) for number in model.seen[0]]
        except shardtool.InvalidRequest as error:
            found[name] = str(error)
    return found


def of_lightning(dataset: Any, folder: str) -> Found:
    """Return the samples of each epoch of Lightning's Trainer, of each validation, and of a resumed run."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    samples = dataset.decode().fields("cls")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.valid, self.steps = Model(), [[]], 0  # type: ignore[var-annotated]

        def training_step(self, batch: Any, _: int) -> Any:
            self.steps += 1
            return self.model(batch["cls"])["loss"]

        def on_train_epoch_start(self) -> None:
            self.model.seen.append([])

        def on_train_batch_end(self, *_: Any) -> None:
            if self.steps == STOP:  # in the middle of the second epoch
                self.trainer.save_checkpoint(f"{folder}/stopped.ckpt")

        def on_validation_epoch_start(self) -> None:
            self.valid.append([])

        def validation_step(self, batch: Any, _: int) -> None:
            extra = batch["__padding__"].tolist()
            self.valid[-1] += [n for n, padded in zip(batch["cls"].tolist(), extra, strict=True) if not padded]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.0)

    def run(module: Module, at: str | None = None) -> None:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, use_distributed_sampler=False,
            logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        valid = loader(samples[:11], SIZE, shuffle=False)
        trainer.fit(module, loader(samples, SIZE, drop_last=True), valid, ckpt_path=at, weights_only=False)

    whole, resumed = Module(), Module()
    run(whole)
    run(resumed, f"{folder}/stopped.ckpt")
    return {"whole": whole.model.seen, "valid": whole.valid, "resumed": resumed.model.seen}


def of_checkpoint(dataset: Any, folder: str) -> Found:
    """Return the batches of an epoch, and of an epoch with a checkpoint of torch.distributed after two batches."""
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    options: dict[str, Any] = {"seed": 3, "parts": 8}
    batches = loader(dataset.decode().fields("cls"), SIZE, **options)
    whole = [batch["cls"].tolist() for batch in loader(dataset.decode().fields("cls"), SIZE, **options)]
    passing = iter(batches)
    taken = [next(passing)["cls"].tolist() for _ in range(2)]
    dcp.save({"batches": batches, "weight": torch.zeros(3)}, checkpoint_id=f"{folder}/checkpoint")
    other = loader(dataset.decode().fields("cls"), SIZE, parts=8)
    dcp.load({"batches": other, "weight": torch.zeros(3)}, checkpoint_id=f"{folder}/checkpoint")
    return {"whole": whole, "parts": taken + [batch["cls"].tolist() for batch in other]}


def of_steps(dataset: Any, _: str) -> Found:
    """Return the samples of two epochs for each kind of loader. In each step, the ranks wait for each other.

    Before each epoch, rank 0 reads one batch and starts again, which must not change the epochs.
    """
    dist.init_process_group("gloo")
    samples = dataset.decode().fields("cls").filter(lambda sample: sample["cls"] % 8 > 2)
    found: Found = {}
    for name, batches in (
        ("loader", loader(samples, SIZE, ends="pad")),
        ("stream", DataLoader(StreamDataset(samples, SIZE, ends="pad"), SIZE)),
        ("workers", DataLoader(StreamDataset(samples, SIZE, ends="pad"), SIZE, num_workers=2)),
        (
            "persistent",
            DataLoader(StreamDataset(samples, SIZE, ends="pad"), SIZE, num_workers=2, persistent_workers=True),
        ),
    ):
        found[name] = []
        for _epoch in range(2):
            if dist.get_rank() == 0:
                next(iter(batches))
            found[name].append([])
            for batch in batches:
                dist.all_reduce(torch.ones(1))
                found[name][-1] += batch["cls"].tolist()
    return found


if __name__ == "__main__":
    name, path, place = sys.argv[1:]
    data = shardtool.open(path)
    programs = {
        "accelerate": of_accelerate, "trainer": of_trainer, "lightning": of_lightning, "dcp": of_checkpoint,
        "steps": of_steps,
    }  # fmt: skip
    shown = programs[name](data, place)
    with open(f"{place}/{os.environ['RANK']}.json", "w") as file:
        json.dump(shown, file)
    if dist.is_initialized():
        dist.destroy_process_group()
