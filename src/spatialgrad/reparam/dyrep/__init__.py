"""DyRep: branches that grow while the network trains."""
