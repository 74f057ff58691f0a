"""Optional parts of torch-edl, found by entry points like plugins of other packages.

Nothing outside of this folder imports them; see :mod:`torch_edl.interfaces`.
"""
