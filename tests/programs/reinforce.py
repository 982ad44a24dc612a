"""Improve a policy by REINFORCE: many forwards without gradients for each update."""
# slow
# steps: 10

import torch
from torch import nn

HORIZON = 20

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

for update in range(10):
    state, states, actions, rewards = torch.randn(2), [], [], []
    with torch.no_grad():
        for _ in range(HORIZON):
            action = torch.distributions.Categorical(logits=policy(state)).sample()
            states.append(state)
            actions.append(action)
            state = state * 0.9 + (action * 2 - 1) * 0.1
            rewards.append(-state.norm())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / returns.std()
    chosen = torch.distributions.Categorical(logits=policy(torch.stack(states)))
    loss = -(chosen.log_prob(torch.stack(actions)) * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
