"""The commands of the command line, one file each. Whatever is slow to import is imported when a command runs."""
