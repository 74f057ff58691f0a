"""Optional parts of torch-edl, found by entry points like plugins of other packages.

One module outside of this folder imports a plugin: ``torch_edl.preprocessing``, the public name of
``torch_edl.plugins.preprocessing``. See :mod:`torch_edl.interfaces`.
"""
