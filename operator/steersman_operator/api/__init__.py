"""What the operator tells and takes over HTTP."""
