"""D-1, shown: what completes under torchrun does so under ``ft_launcher``; hangs are found."""
