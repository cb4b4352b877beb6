"""What only a GPU can show: ``make gpu``. See CONTRIBUTING.md."""
