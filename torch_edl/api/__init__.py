"""What a training script of the user's own calls: the job, its loader, the trainer class.

No gradients and no sockets here; nothing that a model file with its contract needs.
"""
