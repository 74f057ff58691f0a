"""The state machine of one job, composed of those in the other folders."""
