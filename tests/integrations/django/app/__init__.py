"""An app of Django with tasks of many kinds."""
