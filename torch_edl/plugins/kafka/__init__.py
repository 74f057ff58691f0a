"""Topics of Kafka as data, with an end or without one."""
