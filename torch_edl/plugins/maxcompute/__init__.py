"""Tables and partitions of MaxCompute as data."""
