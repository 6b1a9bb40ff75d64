"""Who may ask, which routes there are, how they are changed at run time: the same for every engine."""
