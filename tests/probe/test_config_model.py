"""What is told of a model."""

import torch
from torch import nn

from stepscope.probe.program_state import describe_model


def test_layers_of_attention_and_convolution_are_told():
    attends = describe_model(nn.Sequential(nn.TransformerEncoderLayer(8, 2), nn.Conv1d(8, 8, 1)))
    assert (attends.attends, attends.convolved_dims) == (True, [1])
    plain = describe_model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(4, 4, 3), nn.Linear(4, 2)))
    assert (plain.attends, plain.convolved_dims) == (False, [2, 3])


def test_parameters_are_counted_by_dtype_and_format():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2, dtype=torch.bfloat16))
    model[1].requires_grad_(False)
    told = describe_model(model.to(memory_format=torch.channels_last))
    assert (told.parameters, told.trainable) == (122, 112)
    assert told.dtypes == {"float32": 112, "bfloat16": 10}
    assert told.memory_format == "channels_last"
