"""Starting the processes of a job: its master, its folder, and the nodes of scripts."""
