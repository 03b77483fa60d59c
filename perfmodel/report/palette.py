"""One colour a cause, the same in the terminal and in plots. Neighbours in the order of attribution differ in hue and lightness."""

COLOURS = {
    "reached": "#1b7837",
    "format not native": "#444444",
    "weight traffic": "#2166ac",
    "activation traffic": "#92c5de",
    "sustained clock": "#b2182b",
    "tensor-core efficiency": "#f4a582",
    "tile padding": "#762a83",
    "scheduling": "#c2a5cf",
    "bandwidth ramp and L2 limits": "#35978f",
    "dequantise and quantise": "#dfc27d",
    "unfused activation traffic": "#8c510a",
    "routing imbalance": "#de77ae",
    "launch and sync": "#bababa",
    "communication": "#1a1a1a",
}
"""`reached` is the ideal time: FLOPs at the peak."""

LETTERS = dict(zip(COLOURS, "=NWACTPSBQUILX", strict=True))
"""Where there are too few colours, a bar spells its causes with these letters."""
