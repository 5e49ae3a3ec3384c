"""Which engines answer: learnt from the traffic, and by asking them if that is switched on."""
