"""One shard of the model: holding it, updating it, and writing it to disk without a pause.

Nothing here knows tasks beyond their watermarks, or other servers; and nothing imports torch.
"""
