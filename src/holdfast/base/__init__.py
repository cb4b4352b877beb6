"""What every room stands on: clocks, descriptors, files, torch's private names. No policy."""
