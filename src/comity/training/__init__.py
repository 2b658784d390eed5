"""Local training: learning tasks, requests for training, gradient descent, DP-SGD."""
