"""The attack on pmpguard as a suite: kills, power cuts, full disks, clocks, damaged files, rude clients."""
