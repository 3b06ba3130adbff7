"""Holds hardware profiles, fabric profiles and job presets as data. Each value has a reason and a source."""
