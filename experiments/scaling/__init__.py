"""How planning grows with the depth of a network: seconds, memory, overhead, proven gap."""
