"""Parts that not every user needs. They are found by entry points, as those of other packages are.

Nothing outside of this folder imports them; see :mod:`torch_edl.interfaces`.
"""
