"""Training scripts as users of the big trainers write them: nothing of ours is in them.

Each trains a tiny model on random data on CPU, saves a checkpoint every 20 steps, and goes on from
the last one when it is started again. ``stamp("step")`` after each step is the benchmark's.
"""

TRANSFORMERS = """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Words(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}

class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        stamp("step")

os.makedirs("out", exist_ok=True)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=32))
arguments = TrainingArguments(
    output_dir="out", max_steps=100_000, per_device_train_batch_size=2, save_steps=20,
    save_total_limit=2, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1000)
trainer = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[Steps()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("out"))
"""

LIGHTNING = """
import logging
import torch
import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Steps(Callback):
    def on_train_batch_end(self, *_, **__):
        stamp("step")

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
data = DataLoader(TensorDataset(torch.randn(400_000, 32)), batch_size=2)
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=100_000, logger=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir="out",
    callbacks=[Steps(), ModelCheckpoint("out", every_n_train_steps=20, save_last=True)])
trainer.fit(Model(), data, ckpt_path="last")
"""

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(32, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
step = 0
if os.path.exists("out/step"):
    accelerator.load_state("out/state")
    step = int(open("out/step").read())
while step < 100_000:
    loss = model(torch.randn(4, 32)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    stamp("step")
    if step % 20 == 0:
        accelerator.save_state("out/state")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            with open("out/step.new", "w") as file:
                file.write(str(step))
            os.replace("out/step.new", "out/step")
"""

FSDP = """
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
if os.path.exists("out/last"):
    step = int(open("out/last").read())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"out/{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
while step < 100_000:
    model(torch.randn(4, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    stamp("step")
    if step % 20 == 0:
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"out/{step}")
        if dist.get_rank() == 0:
            with open("out/last.new", "w") as file:
                file.write(str(step))
            os.replace("out/last.new", "out/last")
        dist.barrier()
"""

SCRIPTS = {
    "transformers Trainer": ("transformers", TRANSFORMERS),
    "Lightning, DDP": ("lightning", LIGHTNING),
    "accelerate": ("accelerate", ACCELERATE),
    "FSDP2 with DCP": ("torch", FSDP),
}
"""By name: the package that has to be installed, and the script."""
