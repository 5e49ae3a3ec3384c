"""The subcommands of `steersman` that belong to the operator."""
