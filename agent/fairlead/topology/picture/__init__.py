"""Shows one machine to a person: as an SVG drawing, as a matrix in text, and as JSON."""
