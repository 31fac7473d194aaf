"""One file per engine, behind the protocol of `harness.engines.base`."""
