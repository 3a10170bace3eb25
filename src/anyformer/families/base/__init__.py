"""The base of all families: Family, config fields, templates, folder layouts and class detection."""
