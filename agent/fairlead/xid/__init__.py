"""Pure rules: the Xid catalogue and the kernel line parser."""
