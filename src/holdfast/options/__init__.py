"""The command line of ``ft_launcher``: a table of options, its readers, and the plan.

``option.py`` one option · ``launch_options.py`` torchrun's · ``ft_options.py`` the others ·
``options.py`` the table · ``arguments.py`` reads a command line by it · ``help.py`` shows it ·
``plan.py`` the work of one launcher
"""
