"""Builds the documentation as a site of static files, from the same Markdown that GitHub and `fairlead docs` show."""
