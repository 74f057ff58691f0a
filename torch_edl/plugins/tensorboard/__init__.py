"""Scalars for TensorBoard.

The observer writes event files with the package tensorboard, without torch and TensorFlow.
"""
