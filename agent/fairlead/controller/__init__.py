"""Runs on the controller: pulls and keeps the usage records of jobs, answers for jobs, and tells the owners of idle jobs."""
