"""From a collector to a committed row: contracts, the bounded queue and the one writer."""
