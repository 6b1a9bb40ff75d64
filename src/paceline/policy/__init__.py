"""The policy: for each route and each step, whether to speculate and how far, from measured costs and
acceptance.

Plain Python and NumPy on frozen records. It knows no engine and no PyTorch, so that it can be simulated,
tested and read alone, and serves any engine that asks it (`interface.py`)."""
