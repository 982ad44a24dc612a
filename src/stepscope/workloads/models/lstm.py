"""A recurrent classifier of character sequences."""

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """Characters int64 [N, length] → logits [N, classes], from the mean over time."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.head(states.mean(dim=1))
        return logits


def lstm(vocabulary: int, classes: int, embedding: int = 128, hidden: int = 256) -> CharacterLSTM:
    """Two bidirectional layers."""
    return CharacterLSTM(vocabulary, embedding, hidden, classes)
