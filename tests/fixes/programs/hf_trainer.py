"""Fine-tune a tiny causal language model, built from its config, with the Hugging Face Trainer."""

import sys
import tempfile

import torch
from _digest import digest
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class PrintingTrainer(Trainer):
    """Prints every training loss."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        result = super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training:
            print("loss", repr(result.item()))
        return result


set_seed(0)
tokens = torch.randint(5, 100, (56, 12))
examples = [{"input_ids": row, "labels": row} for row in tokens]
config = LlamaConfig(
    vocab_size=100,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    attention_dropout=0.1,
    use_cache=False,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="epoch",
        use_cpu=DEVICE == "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = PrintingTrainer(
        model, arguments, train_dataset=examples[:46], eval_dataset=examples[46:]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("validation", repr(trainer.evaluate()["eval_loss"]))
print("weights", digest(model))
