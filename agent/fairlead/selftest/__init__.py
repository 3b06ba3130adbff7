"""Tests fairlead on the machine that it is installed on: what can be read, judged, planned and run there. It changes nothing."""
