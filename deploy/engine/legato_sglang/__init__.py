"""Legato's plug-ins for SGLang 0.5.23. This package lives in the engine's environment only; the control plane never imports it."""
