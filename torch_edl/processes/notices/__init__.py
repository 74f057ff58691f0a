"""Notices of preemption: a file that appears, or an endpoint of a cloud's metadata service. The
classes only look for a notice; ``torch_edl/processes/preemption.py`` watches and acts."""
