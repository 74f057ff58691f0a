"""Client of all parameter servers of a job: partition of the model, connections, pull and push.

The client exchanges arrays only. It knows no modules and no tasks, and never imports torch.
"""
