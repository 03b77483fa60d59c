"""The public measurements that the package aiconfigurator-core carries (Apache-2.0), read where it is installed."""
