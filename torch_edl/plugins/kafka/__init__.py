"""Topics of Kafka as data, with or without an end."""
