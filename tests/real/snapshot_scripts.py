"""Trainings with snapshots, for tests and for long runs: steps, losses and weights are noted.

``KILLS`` is a list of ``cycle:rank@step:point`` with spaces between: in that cycle the rank kills
itself with SIGKILL at this point of the work after ``step`` steps.
"""

from __future__ import annotations

HEAD = """
import hashlib, json, os, signal, sys, time
import torch

OUT = os.environ["OUT"]
CYCLE, RANK = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), int(os.environ.get("RANK", 0))
KILLS = set(os.environ.get("KILLS", "").split())
ACCUMULATE = int(os.environ.get("ACCUMULATE", "1"))
torch.set_num_threads(1)

def note(**what):
    with open(f"{OUT}/notes", "a") as file:
        file.write(json.dumps({"cycle": CYCLE, "rank": RANK, **what}) + chr(10))

def die(step, point):
    if f"{CYCLE}:{RANK}@{step}:{point}" in KILLS:
        note(killed=point, at=step)
        os.kill(os.getpid(), signal.SIGKILL)

def weights(model):
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total.update(name.encode() + local.detach().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
"""

TRAINER = (
    HEAD
    + """
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback,
    TrainingArguments)
from holdfast.integrations.transformers import SnapshotCallback, last_checkpoint

torch.manual_seed(11)
RESUME = os.environ.get("RESUME", "")
# A checkpoint of the trainer's does not hold the loss of all steps.
UNLIKE = ("per_second", "runtime", "train_loss") if RESUME else ("per_second", "runtime")

def alike(logs):
    return {k: v for k, v in logs.items() if not any(each in k for each in UNLIKE)}

class Words(Dataset):
    def __init__(self, n, first):
        self.n, self.first = n, first

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        words = torch.randint(
            0, 100, (16,), generator=torch.Generator().manual_seed(self.first + index))
        return {"input_ids": words, "labels": words}

class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        die(state.global_step, "step")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        note(step=state.global_step, weights=weights(model), epoch=state.epoch)
        die(state.global_step, "end")

    def on_epoch_begin(self, args, state, control, **kwargs):
        die(state.global_step, "epoch_begin")

    def on_epoch_end(self, args, state, control, **kwargs):
        die(state.global_step, "epoch_end")

    def on_log(self, args, state, control, logs=None, **kwargs):
        note(log=state.global_step, logs=alike(logs))
        die(state.global_step, "log")

    def on_save(self, args, state, control, **kwargs):
        die(state.global_step, "save")

class Dying(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        note(loss=self.state.global_step, value=float(loss))
        die(self.state.global_step, "backward")
        return loss

    def prediction_step(self, *args, **kwargs):
        die(self.state.global_step, "evaluate")
        return super().prediction_step(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, folder):
        die(self.state.global_step, "saving")
        return super()._save_optimizer_and_scheduler(folder)

model = LlamaForCausalLM(LlamaConfig(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=32, attention_dropout=0.2))
more = json.loads(os.environ.get("ARGUMENTS", "{}"))
arguments = TrainingArguments(**{**dict(
    output_dir=f"{OUT}/out", num_train_epochs=3, per_device_train_batch_size=2,
    gradient_accumulation_steps=ACCUMULATE, learning_rate=1e-2, lr_scheduler_type="cosine",
    eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=2, save_steps=5,
    logging_steps=2, use_cpu=True, report_to=[], disable_tqdm=True), **more})
callbacks = [Steps(), SnapshotCallback()]
if "metric_for_best_model" in more:
    callbacks.append(EarlyStoppingCallback(early_stopping_patience=2))
trainer = Dying(
    model=model, args=arguments, train_dataset=Words(40, 0), eval_dataset=Words(8, 1000),
    callbacks=callbacks)
resume = last_checkpoint(f"{OUT}/out") if RESUME == "last" else RESUME == "True" or None
done = trainer.train(resume_from_checkpoint=resume)
die(trainer.state.global_step, "after")
note(ends=trainer.state.global_step, weights=weights(model),
     history=[*map(alike, trainer.state.log_history)],
     all=alike({"train_loss": done.training_loss}))
time.sleep(0.2)  # or gloo's thread aborts that still has the last evaluation's tensors
"""
)

LIGHTNING = (
    HEAD
    + """
if os.environ["PACKAGE"] == "lightning":
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
else:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from holdfast.integrations.lightning import SnapshotCallback
from torch.utils.data import DataLoader, TensorDataset

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(11)
inputs = torch.randn(40 * RANKS, 8)

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        die(self.trainer.global_step, "step")
        loss = (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        note(loss=self.trainer.global_step, batch=index, value=float(loss),
             data=float(batch[0].sum()))
        return loss

    def validation_step(self, batch, index):
        die(self.trainer.global_step, "evaluate")
        self.log("val_loss", (self.layers(batch[0]) ** 2).mean(), sync_dist=True)

    def on_train_batch_end(self, *args):
        note(step=self.trainer.global_step, batch=args[-1], weights=weights(self),
             epoch=self.current_epoch)
        die(self.trainer.global_step, "end")

    def on_train_epoch_start(self):
        die(self.trainer.global_step, "epoch_begin")

    def on_train_epoch_end(self):
        note(epoch=self.current_epoch, metrics={
            k: float(v) for k, v in sorted(self.trainer.callback_metrics.items())})
        die(self.trainer.global_step, "epoch_end")

    def on_save_checkpoint(self, checkpoint):
        die(self.trainer.global_step, "saving")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
            "interval": "step"}}

class Odd(Callback):
    # of which a part is no plain data
    def __init__(self):
        self.n = 0

    def on_train_batch_end(self, *args):
        self.n += 1

    def state_dict(self):
        lock = {} if os.environ.get("RESUME") else {"lock": object()}
        return {"n": self.n, **lock}

    def load_state_dict(self, state):
        assert "lock" not in state
        self.n = state["n"]

more = json.loads(os.environ.get("ARGUMENTS", "{}"))
odd = Odd()
callbacks = [odd, SnapshotCallback(), ModelCheckpoint(
    f"{OUT}/out", every_n_train_steps=5, save_last=True)]
if os.environ.get("STOP"):
    callbacks.append(EarlyStopping("val_loss", patience=1, min_delta=100.0))
trainer = pl.Trainer(**{**dict(
    accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto", max_epochs=3,
    accumulate_grad_batches=ACCUMULATE, val_check_interval=3 * ACCUMULATE, logger=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=OUT,
    callbacks=callbacks), **more})
workers = int(os.environ.get("WORKERS", "0"))
model = Model()
trainer.fit(
    model, DataLoader(TensorDataset(inputs), batch_size=4, shuffle=True, num_workers=workers),
    DataLoader(TensorDataset(inputs[:8]), batch_size=4), ckpt_path=os.environ.get("RESUME") or None)
die(trainer.global_step, "after")
note(ends=trainer.global_step, weights=weights(model), odd=odd.n, epochs=trainer.current_epoch,
     metrics={k: float(v) for k, v in sorted(trainer.callback_metrics.items())})
"""
)

ACCELERATE = (
    HEAD
    + """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from holdfast.integrations.accelerate import SnapshotBatches
from holdfast.snapshot import Snapshots
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=ACCUMULATE,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
torch.manual_seed(11)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
inputs = torch.randn(80, 8)
loader = DataLoader(TensorDataset(inputs), batch_size=4, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

batches = SnapshotBatches(accelerator, loader)
snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)
step = snapshots.restore()
for epoch in batches.epochs(3):
    for [batch] in batches:
        die(step, "step")
        with accelerator.accumulate(model):
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        note(loss=step, value=float(loss), data=float(batch.sum()))
        if accelerator.sync_gradients:
            step += 1
            # Before it is taken: a rank that another's fault ends in between has noted it once.
            note(step=step, weights=weights(accelerator.unwrap_model(model)), epoch=epoch)
            snapshots.take(step)
            die(step, "end")
    note(epoch=epoch)
    die(step, "epoch_end")
note(ends=step, weights=weights(accelerator.unwrap_model(model)))
time.sleep(0.2)  # or gloo's thread aborts that still has the last tensors
"""
)

FSDP2 = (
    HEAD
    + """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from holdfast.snapshot import Snapshots

dist.init_process_group("gloo")
torch.manual_seed(11)
model = torch.nn.Sequential(
    torch.nn.Linear(9, 17), torch.nn.Dropout(0.3), torch.nn.Linear(17, 17), torch.nn.Linear(17, 1))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(RANK)
snapshots = Snapshots(model=model, optimizer=optimizer)
step = snapshots.restore()
while step < 30:
    die(step, "step")
    batch = torch.randn(4, 9)
    loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
    note(loss=step, value=float(loss))
    optimizer.zero_grad()
    loss.backward()
    die(step, "backward")
    optimizer.step()
    step += 1
    note(step=step, weights=weights(model))  # before it is taken, as above
    snapshots.take(step)
    die(step, "end")
note(ends=step, weights=weights(model))
dist.destroy_process_group()
"""
)
