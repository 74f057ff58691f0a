"""The contract of a model file: its framework, its functions, and how they are called.

Nothing is trained in here. All but torch_contract is of no framework.
"""
