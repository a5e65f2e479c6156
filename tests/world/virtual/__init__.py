"""A world in one event loop: processes, machines, a network, disks and clocks of virtual time, all of it decided by a seed."""
