"""cuDNN's backend descriptors: operation graphs, engines and their knobs, execution plans."""
