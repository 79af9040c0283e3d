"""The loop on a machine of one's own: tiny model, engine, workload and the script that runs them."""
