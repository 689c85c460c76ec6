"""What runs a problem: plans, one-line calls, capture, replay."""
