"""The command line, one file a subcommand; heavy modules are imported when a command runs."""
