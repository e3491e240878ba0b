"""What requests ask of sampling, one small object a feature; all remember their slots and nothing else.

A feature hears of every request (``add``, ``remove``), once a step sends what changed to the device
(``flush``), says what it wants of the next batch, and hears which slots were sampled. A request that
does not use a feature leaves no trace in it. The maths is ``engine/sampling``.
"""
