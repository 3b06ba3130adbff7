"""Hardware profiles, fabric profiles and job presets: data, every value with why and source."""
