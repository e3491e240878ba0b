"""Sampling as pure tensor operations; batching their parameters is each engine's business.

``sampler.sample`` is the one entry point; ``batch`` holds its nouns, ``ops`` and ``logprobs``
the functions it is made of. Nothing here remembers a request, reads the global random state
or, on a GPU, waits for the device.
"""
