"""The data plane: calls that move parts of the model, over ZeroMQ.

Nothing here knows what a call does. Calls for control use gRPC.
"""
