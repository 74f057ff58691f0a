"""The data path of a worker: sources of records, leased tasks, and minibatches.

This package has no gradients and no model files, and connects to no parameter server. Of the
servers, it passes on their incarnation and the news of a change. The package never imports torch.
"""
