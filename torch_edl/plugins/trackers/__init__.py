"""Observers that send a job to an experiment tracker: MLflow, or Weights & Biases.

``tracker`` decides what a tracker receives, and when; ``mlflow`` and ``wandb`` are the adapters of
the two libraries. The library runs in a process of its own (``process``), so neither its import nor
a server that does not answer can delay or fail the command.
"""
