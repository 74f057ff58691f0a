"""Data that may have no end, by offset: the partitions of topics of Kafka.
No tasks here: ``torch_edl.data.stream_space`` cuts them, and the master asks for the offsets."""
