"""Kernel profiles: one YAML a kernel library."""

from perfmodel.profiles.profile import Fit, Interval, Parameters, Profile, Stage, TileMenu, load_profile, profile_ids, profiles

__all__ = ["Fit", "Interval", "Parameters", "Profile", "Stage", "TileMenu", "load_profile", "profile_ids", "profiles"]
