"""All servers of a job as one: the partition of the model, a connection to each shard, the client.

Arrays in, arrays out: nothing here knows a module or a task, or imports torch.
"""
