"""Local training: learning tasks, training requests, gradient descent, DP-SGD."""
