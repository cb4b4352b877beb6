"""The command line of ``ft_launcher``: a table of options, and what reads it.

``option.py`` what an option is · ``launch_options.py`` torchrun's · ``ft_options.py`` ours ·
``options.py`` all of them · ``arguments.py`` reads a command line by the table ·
``help.py`` shows it
"""
