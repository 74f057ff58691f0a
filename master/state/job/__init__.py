"""One job: a state machine that is composed of the other folders."""
