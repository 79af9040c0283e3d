"""Pure functions from rows of the store to frames and charts; nothing here draws or reads."""
