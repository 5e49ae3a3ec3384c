"""The proxy's subcommands of ``steersman`` that do not run a proxy."""
