"""Re-drawn bins: sigma, epsilon and delta by bounds, where every epoch draws the bin of each example anew."""
