"""Completion of ``torch-edl`` in bash, zsh and fish, by the library argcomplete.

``command`` prints the code that the user's shell loads. ``reply`` is the program that the shell
runs whenever the user presses Tab.
"""
