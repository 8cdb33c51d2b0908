"""An optimizer of torch as a user's file."""

import torch

optimizer = torch.optim.RMSprop
