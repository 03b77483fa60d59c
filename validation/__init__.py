"""Measured data held against the model: reading, flagging, scoring."""
