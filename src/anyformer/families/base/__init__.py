"""What every family is made of: Family, its config fields, and which published class a folder holds."""
