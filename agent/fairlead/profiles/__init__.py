"""Holds hardware profiles, fabric profiles and job presets as data. Every value has its reason and its source."""
