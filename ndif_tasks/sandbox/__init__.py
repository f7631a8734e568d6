"""Where strangers' code runs: the zygote that holds the weights, and the runners it forks, one per job."""
