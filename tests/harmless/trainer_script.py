"""A training with the Trainer of Hugging Face: DDP over gloo. It reports nothing by itself."""

import os
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.harmless import scenario as s

SCENARIO = s.chosen()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402 - a scenario may act before
import torch.distributed as dist  # noqa: E402
from torch.utils.data import Dataset, SequentialSampler  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

if os.environ["HARMLESS_SCENARIO"] != "turns_warnings_into_errors":
    warnings.simplefilter("ignore")
OUT = os.environ["OUT"]


class Words(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        SCENARIO.item(index)
        words = torch.randint(0, 100, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class InOrder(Trainer):
    def _get_train_sampler(self, *_, **__):
        return SequentialSampler(self.train_dataset)


class Steps(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        SCENARIO.joined()

    def on_step_begin(self, args, state, control, **kwargs):
        SCENARIO.step(state.global_step)


def main():
    set_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
        )
    )
    trainer = InOrder(
        model=model,
        args=TrainingArguments(
            output_dir=f"{OUT}/trainer",
            max_steps=s.STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=SCENARIO.accumulate,
            dataloader_num_workers=SCENARIO.workers,
            save_strategy="no",
            use_cpu=True,
            ddp_timeout=int(getattr(SCENARIO, "timeout_s", 7200)),
            report_to=[],
            disable_tqdm=True,
            logging_steps=1000,
        ),
        train_dataset=Words(),
        callbacks=[Steps()],
    )
    trainer.train()
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    s.finished(SCENARIO, trainer.state.global_step, weights)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
