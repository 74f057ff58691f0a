"""``--trace``: spans of the steps of each worker, for OpenTelemetry. The SDK batches them and sends
them in a thread of its own, so training waits for no collector."""
