"""Starting the processes of a job: its master, its folder, and the agents of scripts."""
