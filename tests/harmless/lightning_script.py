"""A training with Lightning: DDP over gloo. It reports nothing by itself."""

import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.harmless import scenario as s

SCENARIO = s.chosen()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lightning.pytorch as pl  # noqa: E402 - a scenario may act before
import torch  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

if os.environ["HARMLESS_SCENARIO"] != "turns_warnings_into_errors":
    warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
TIMEOUT = timedelta(seconds=getattr(SCENARIO, "timeout_s", 7200.0))


class Samples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        SCENARIO.item(index)
        drawn = torch.randn(5, generator=torch.Generator().manual_seed(index))
        return drawn[:4], drawn[4:]


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def on_fit_start(self):
        SCENARIO.joined()

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx % SCENARIO.accumulate == 0:
            SCENARIO.step(self.trainer.global_step)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    pl.seed_everything(1)
    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=SCENARIO.nproc,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=TIMEOUT),
        max_steps=s.STEPS,
        accumulate_grad_batches=SCENARIO.accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.environ["OUT"],
    )
    trainer.fit(
        model,
        DataLoader(Samples(), batch_size=2, shuffle=False, num_workers=SCENARIO.workers),
    )
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    s.finished(SCENARIO, trainer.global_step, weights)


if __name__ == "__main__":
    main()
