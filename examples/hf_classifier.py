"""A small BERT built from a configuration, trained by the Hugging Face Trainer."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sequences(torch.utils.data.Dataset):
    """Random token sequences of two kinds: the second has higher tokens."""

    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 2, (count,), generator=generator)
        self.tokens = torch.randint(5, 800, (count, length), generator=generator)
        self.tokens += 200 * self.labels[:, None]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": int(self.labels[index])}


def main():
    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=1024,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=150,
            learning_rate=3e-4,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            save_steps=75,
            logging_steps=50,
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            BertForSequenceClassification(config), arguments, train_dataset=Sequences(20000, 128)
        )
        trainer.train()
    print("done", trainer.state.global_step)


if __name__ == "__main__":
    main()
