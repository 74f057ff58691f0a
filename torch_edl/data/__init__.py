"""How records reach a worker: sources (files by index), leases of tasks and the loader of batches.
No gradients, no servers, no user contract here; nothing in ``sources`` may import torch."""
