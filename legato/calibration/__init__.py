"""Fitting the engine model to measured engines: `legato calibrate`."""
