"""Fine-tune a tiny BERT classifier, built from its config, with the Hugging Face Trainer."""
# steps: 12
# needs: transformers accelerate

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback


class PrintingTrainer(Trainer):
    """Prints every training loss."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        result = super().compute_loss(model, inputs, *args, **kwargs)
        print("loss", repr(result.item()))
        return result


torch.manual_seed(0)
tokens = torch.randint(5, 100, (48, 12))
examples = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
config = BertConfig(
    vocab_size=100,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = PrintingTrainer(
        BertForSequenceClassification(config), arguments, train_dataset=examples
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("done", trainer.state.global_step)
