"""Models and GPUs as numbers: config facts, data sheets and fitted constants. Read by shared/core/shipped_laws.py."""
