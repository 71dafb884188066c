"""Regions that are alike: followed once, recorded for each."""
