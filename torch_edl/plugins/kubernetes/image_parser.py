"""The command line of ``torch-edl image``."""

from __future__ import annotations

import argparse

from torch_edl.cli.arguments.options import add_option


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "write a Dockerfile for pods on Kubernetes"
    image = commands.add_parser("image", help=line, description=f"{line.capitalize()}.")
    image.set_defaults(runs="torch_edl.plugins.kubernetes.client.image.main")
    text = "model file that it is for: one of Keras needs TensorFlow"
    image.add_argument("model_file", metavar="MODEL.py", nargs="?", default="", help=text)
    text = "data that jobs read: what reads it is installed (default: none)"
    add_option(image, "--data PATH", text, nargs="+", action="extend", default=[])
    text = "other extra of torch-edl, such as etcd (default: none)"
    add_option(image, "--extra NAME", text, nargs="+", action="extend", default=[])
    text = "variant of torch: cpu, cu126 (default: cpu)"
    add_option(image, "--torch VARIANT", text, default="cpu")
    text = "what pip installs torch-edl from (default: this version)"
    add_option(image, "--install SPEC", text, default="")
    text = "requirements.txt with what the code needs (default: none)"
    add_option(image, "--requirements FILE", text, default="")
    text = "copy this folder to DIR, for --code-in-image (default: no)"
    add_option(image, "--code DIR", text, default="")
    text = "where to write; - is stdout (default: Dockerfile)"
    add_option(image, "--output FILE", text, default="Dockerfile")
    add_option(image, "--force", "replace the file (default: no)")
