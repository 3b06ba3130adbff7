"""Runs on the controller: reads the usage records of jobs there, and tells the owners of idle jobs if the site wants that."""
